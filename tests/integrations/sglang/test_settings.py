"""Flags override variables, which override the file, which overrides defaults. Unknown names and values out of range
are refused by name."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_states import profile as drawn_profile
from every import every

from agentspec.config import EngineConfig
from agentspec.errors import ConfigError
from agentspec.estimates import NUM_WEIGHTS, Estimates
from agentspec.integrations.sglang import setting_sources, settings
from agentspec.scheduling import ControlConfig


def parse(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    setting_sources.add_flags(parser)
    return setting_sources.pop_flags(parser.parse_args(arguments))


def test_flag_wins_over_variable_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "agentspec.json"
    file.write_text(json.dumps({"tau": "1.5", "max_pattern": 7, "budget_mb": 3}))
    environment = {"AGENTSPEC_CONFIG": str(file), "AGENTSPEC_TAU": "2.5", "AGENTSPEC_MAX_PATTERN": "8", "PATH": "x"}

    chosen = setting_sources.resolve(parse("--agentspec-tau", "3.5"), environment)

    assert (chosen.tau, chosen.max_pattern, chosen.budget_mb) == ("3.5", 8, 3)
    assert chosen.min_token_prob == settings.Settings().min_token_prob


def test_settings_alone_read_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSPEC_ALPHA", "2.5")
    assert settings.Settings().alpha == 4.0


def test_the_config_flag_wins_over_the_config_variable(tmp_path: Path) -> None:
    for name, alpha in (("flag.json", 2.0), ("variable.json", 3.0)):
        (tmp_path / name).write_text(json.dumps({"alpha": alpha}))

    chosen = setting_sources.resolve(
        parse("--agentspec-config", str(tmp_path / "flag.json")), {"AGENTSPEC_CONFIG": str(tmp_path / "variable.json")}
    )

    assert chosen.alpha == 2.0


def test_every_setting_is_a_variable_and_a_key(tmp_path: Path) -> None:
    estimates = tmp_path / "estimates.json"
    Estimates.default().save(estimates)
    profile = tmp_path / "profile.json"
    drawn_profile().save(profile)
    corpora = [tmp_path / "a.corpus", tmp_path / "b.corpus"]
    for path in corpora:
        path.touch()
    values: dict[str, Any] = {
        "mode": "chain",
        "rule": "calibrated",
        "conversation_mb": 2,
        "prompt_tail": 3,
        "max_siblings": 3,
        "num_threads": 2,
        "estimates": str(estimates),
        "corpora": ":".join(map(str, corpora)),
        "alpha": 2.0,
        "max_pattern": 5,
        "min_token_prob": 0.5,
        "budget_mb": 1,
        "breaker_failures": 2,
        "store": "redis://127.0.0.1:1/0",
        "store_optional": True,
        "store_model": "m",
        "store_password_file": "p",
        "store_key_file": "k",
        "store_ttl_days": 1.5,
        "store_quota_mb": 4,
        "store_queue_tokens": 5,
        "store_load_seconds": 6.0,
        "namespace_from": "custom_params.team",
        "namespace_key_file": "n",
        "base": "EAGLE3",
        "tau": "1.5",
        "hybrid_rule": "score",
        "draft_model_pause": "zero-length",
        "stream_order": "off",
        "acceptance_head": "none",
        "stop_threshold": "0.7",
        "hybrid_union": "always",
        "profiling": True,
        "controller": "fixed",
        "controller_objective": "step",
        "controller_length": 3,
        "controller_length_model": "tree",
        "controller_min_confidence": 0.4,
        "controller_window": 9,
        "controller_acceptance": 0.6,
        "controller_table": "1:7,8:3",
        "controller_probe_share": 0.05,
        "keep_step_times": False,
        "widths": "1,4",
        "profile": str(profile),
        "replay": "requests",
        "replay_unmatched": "free",
        "admin_upload_mb": 3,
        "admin_corpora_mb": 7,
        "admin_folder": str(tmp_path),
    }
    assert set(values) == set(settings.FIELDS)
    flags = [part for name in settings.FLAGS for part in (settings.flag_of(name), str(values[name]))]
    file = tmp_path / "agentspec.json"
    file.write_text(json.dumps(values))

    yaml_file = tmp_path / "agentspec.yaml"
    # Any JSON is valid YAML.
    yaml_file.write_text(json.dumps(values))

    by_flag = setting_sources.resolve(parse(*flags), {})
    by_variable = setting_sources.resolve(
        {}, {f"AGENTSPEC_{name.upper()}": str(value) for name, value in values.items()}
    )
    by_file = setting_sources.resolve({"config": str(file)}, {})
    by_yaml = setting_sources.resolve({"config": str(yaml_file)}, {})

    assert by_variable == by_file == by_yaml == settings.Settings(**values)
    assert by_flag == settings.Settings(**{name: values[name] for name in settings.FLAGS})
    assert by_flag.corpus_paths == [str(path) for path in corpora]


@every(
    ("environment", "named"),
    [
        ({"AGENTSPEC_ALPHAA": "1"}, "AGENTSPEC_ALPHAA"),
        ({"AGENTSPEC_ALPHA": "much"}, "AGENTSPEC_ALPHA"),
        ({"AGENTSPEC_ALPHA": "-1"}, "alpha"),
        ({"AGENTSPEC_MIN_TOKEN_PROB": "1.5"}, "min_token_prob"),
        ({"AGENTSPEC_MAX_PATTERN": "0"}, "max_pattern"),
        ({"AGENTSPEC_BUDGET_MB": "-1"}, "budget_mb"),
        ({"AGENTSPEC_MODE": "forest"}, "mode"),
        ({"AGENTSPEC_BREAKER_FAILURES": "0"}, "breaker_failures"),
        ({"AGENTSPEC_ADMIN_UPLOAD_MB": "0"}, "admin_upload_mb must be a whole number >= 1, got 0"),
        ({"AGENTSPEC_ADMIN_CORPORA_MB": "-1"}, "admin_corpora_mb must be a whole number >= 0, got -1"),
        ({"AGENTSPEC_ADMIN_FOLDER": "/nowhere"}, "admin_folder must be a folder, got '/nowhere'"),
        ({"AGENTSPEC_RULE": "guess"}, "rule must be one of calibrated, suffixdecoding, got 'guess'"),
        ({"AGENTSPEC_CONVERSATION_MB": "-1"}, "conversation_mb must be a whole number >= 0, got -1"),
        ({"AGENTSPEC_CONVERSATION_MB": "1.5"}, "conversation_mb must be a whole number >= 0, got '1.5'"),
        ({"AGENTSPEC_PROMPT_TAIL": "1025"}, "prompt_tail must be a whole number >= 0 and <= 1024, got 1025"),
        ({"AGENTSPEC_NUM_THREADS": "-1"}, "num_threads must be a whole number >= 0 and <= 64, got -1"),
        ({"AGENTSPEC_NUM_THREADS": "65"}, "num_threads must be a whole number >= 0 and <= 64, got 65"),
        ({"AGENTSPEC_ESTIMATES": "/nowhere/estimates.json"}, "/nowhere/estimates.json"),
        ({"AGENTSPEC_CORPORA": ":/nowhere/a:/nowhere/b"}, "/nowhere/a, /nowhere/b, which are not there"),
        ({"AGENTSPEC_STORE": "mongodb://a"}, "mongodb"),
        ({"AGENTSPEC_STORE_OPTIONAL": "perhaps"}, "AGENTSPEC_STORE_OPTIONAL"),
        ({"AGENTSPEC_STORE_TTL_DAYS": "-1"}, "store_ttl_days must be a number >= 0, got -1"),
        ({"AGENTSPEC_STORE_QUOTA_MB": "-1"}, "store_quota_mb must be a whole number >= 0, got -1"),
        ({"AGENTSPEC_STORE_QUEUE_TOKENS": "0"}, "store_queue_tokens must be a whole number >= 1, got 0"),
        ({"AGENTSPEC_NAMESPACE_FROM": "user"}, "namespace_from must be one of auto, extra_key"),
        ({"AGENTSPEC_TAU": "often"}, 'tau must be "auto", a number >= 0 or "inf", got \'often\''),
        ({"AGENTSPEC_TAU": "-1"}, "tau must be"),
        (
            {"AGENTSPEC_HYBRID_RULE": "guess"},
            "hybrid_rule must be one of expected, score, match-length, got 'guess'",
        ),
        ({"AGENTSPEC_DRAFT_MODEL_PAUSE": "always"}, "draft_model_pause must be one of payoff, zero-length, never, got"),
        (
            {"AGENTSPEC_STOP_THRESHOLD": "0"},
            "stop_threshold must be a number > 0 and <= 1, auto, head or theorem, got '0'",
        ),
        ({"AGENTSPEC_STOP_THRESHOLD": "1.5"}, "stop_threshold must be"),
        ({"AGENTSPEC_CONFIG": "/nowhere/agentspec.json"}, "/nowhere/agentspec.json"),
    ],
)
def test_bad_variables_are_refused_by_name(environment: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        setting_sources.resolve({}, environment)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"alfa": 2}', "alfa"),
        ('{"alpha": "2"}', "alpha"),
        ('{"max_pattern": 2.5}', "max_pattern"),
        ('{"budget_mb": true}', "budget_mb"),
        ('{"prompt_tail": true}', "prompt_tail must be a whole number"),
        ('{"num_threads": "2"}', "num_threads must be a whole number"),
        ('{"corpora": ["a"]}', r"corpora must be text, got \['a'\]"),
        ('{"estimates": null}', "estimates must be text, got None"),
        (
            '{"tau": [2]}',
            r"tau must be text, got \[2\]; correct the flag --agentspec-tau, the variable AGENTSPEC_TAU or",
        ),
        ('{"alpha": Infinity}', "alpha must be a number > 0, got inf"),
        ('{"store": ["redis://:hush@a"]}', "store must be text, got a value of type list"),
        ('{"stop_threshold": "neck"}', "stop_threshold must be a number"),
        ("[1]", "one JSON object"),
        ("{", "not JSON"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, content: str, named: str) -> None:
    file = tmp_path / "agentspec.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=named):
        setting_sources.resolve({"config": str(file)}, {})


def test_corpora_need_a_rule_that_drafts_from_them(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(ConfigError, match="corpora need the rule calibrated, got 'suffixdecoding'"):
        settings.Settings(corpora=str(tmp_path / "a"), rule="suffixdecoding")
    assert settings.Settings(rule="suffixdecoding").corpus_paths == []


def test_secrets_are_no_settings_and_are_not_shown() -> None:
    secrets = dict.fromkeys(setting_sources.SECRET_VARIABLES, "hush")
    chosen = setting_sources.resolve({}, {**secrets, "AGENTSPEC_STORE": "redis://user:hush@127.0.0.1:1"})
    assert "hush" not in repr(chosen)
    assert "hush" not in str(chosen.shown())
    with pytest.raises(ConfigError) as refused:
        setting_sources.resolve({}, {"AGENTSPEC_STORE": "mongodb://user:hush@a"})
    assert "hush" not in str(refused.value)
    # The scheduler process gets the URL with its secrets.
    assert setting_sources.resolve_for_process(chosen.as_dict()) == chosen


@pytest.mark.parametrize("name", sorted(set(settings.FIELDS) - set(settings.FLAGS)))
def test_what_is_no_flag_is_refused_with_the_variable_and_the_key(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(settings.flag_of(name), "7")
    assert capsys.readouterr().err.endswith(
        f"error: {name} must be set by the variable AGENTSPEC_{name.upper()} or the key {name} of the settings file, got the "
        f"flag {settings.flag_of(name)}; set the variable, or write the key into a file and pass --agentspec-config FILE\n"
    )


def test_there_are_at_most_16_flags() -> None:
    parser = argparse.ArgumentParser(prog="x")
    setting_sources.add_flags(parser)
    shown = set(re.findall(r"--agentspec-[a-z-]+", parser.format_usage()))
    assert shown == {"--agentspec-config", *map(settings.flag_of, settings.FLAGS)} and len(shown) <= 16


def test_yaml_files(tmp_path: Path) -> None:
    file = tmp_path / "agentspec.yml"
    file.write_text("# why\ntau: .inf\nwidths: 8\nstore_optional: yes\nstore_ttl_days: 2\n")
    chosen = setting_sources.resolve({"config": str(file)}, {})
    assert (chosen.tau, chosen.widths, chosen.store_optional, chosen.store_ttl_days) == ("inf", "8", True, 2.0)
    file.write_text("# nothing yet\n")
    assert setting_sources.resolve({"config": str(file)}, {}) == settings.Settings()
    file.write_text("store: 'redis://:hush@a\nalpha: 2\n")
    with pytest.raises(ConfigError, match="is not YAML: .* in line") as refused:
        setting_sources.resolve({"config": str(file)}, {})
    assert "hush" not in str(refused.value)


def test_the_controller_s_settings_reach_it(tmp_path: Path) -> None:
    file = tmp_path / "agentspec.yaml"
    file.write_text(
        "controller: smartspec\ncontroller_length_model: confidence\ncontroller_min_confidence: 0.4\n"
        "controller_window: 9\ncontroller_acceptance: 0.6\ncontroller_probe_share: 0.05\ncontroller_table: {1: 7, 8: 3}\n"
    )
    assert setting_sources.resolve({"config": str(file)}, {}).control_config(has_drafter=False) == ControlConfig(
        controller="smartspec",
        length=15,
        length_model="confidence",
        min_confidence=0.4,
        window=9,
        acceptance=0.6,
        probe_share=0.05,
        table=((1, 7), (8, 3)),
    )


@every("table", ["1", "1:x", "8:1,1:2", "0:3", "1:-1", "1:2:3"])
def test_a_table_that_is_none_is_refused(table: str) -> None:
    with pytest.raises(ConfigError, match="table must"):
        settings.Settings(controller="batch-table", controller_table=table)


def test_the_core_loads_no_engine() -> None:
    code = f"import sys, {setting_sources.__name__}; print({{'torch', 'sglang', 'redis', 'scipy'}} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def test_settings_become_the_engine_s(tmp_path: Path) -> None:
    weights = np.full(NUM_WEIGHTS, 0.5, np.float32)
    Estimates(weights).save(tmp_path / "estimates.json")
    chosen = settings.Settings(
        rule="suffixdecoding",
        budget_mb=3,
        conversation_mb=2,
        prompt_tail=5,
        num_threads=2,
        estimates=str(tmp_path / "estimates.json"),
    )
    config = chosen.engine_config(vocab_size=10, max_draft_tokens=7, trees=False, tokenizer="t")
    assert (config.rule, config.mode, config.vocab_size, config.max_draft_tokens) == ("suffixdecoding", "chain", 10, 7)
    assert (config.budget_bytes, config.conversation_bytes) == (3 << 20, 2 << 20)
    assert (config.prompt_tail, config.num_threads, config.tokenizer, config.background) == (5, 2, "t", True)
    assert config.estimates is not None
    np.testing.assert_array_equal(config.estimates.weights, weights)
    assert settings.Settings().engine_config(vocab_size=10, max_draft_tokens=7, trees=True).estimates is None


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (5, 5), (8, 8), (9, 8), (200, 8)])
def test_threads_are_one_a_core_and_no_more_than_eight(
    cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    for given, expected in (({}, threads), ({"num_threads": 0}, threads), ({"num_threads": 20}, 20)):
        chosen = settings.Settings(**given)
        assert chosen.engine_config(vocab_size=10, max_draft_tokens=7, trees=True).num_threads == expected


def test_reports_and_simulations_draft_as_a_server_with_default_settings_does() -> None:
    served = settings.Settings().engine_config(vocab_size=None, max_draft_tokens=7, trees=True)
    # The number of threads, which a server takes from its machine, does not change drafts.
    assert EngineConfig.served(7) == replace(served, background=False, num_threads=1)


@every(
    ("given", "max_draft_tokens", "expected"),
    [("auto", 7, 0.02), ("auto", 15, 0.16 / 15), ("auto", 63, 0.16 / 63), (0.3, 63, 0.3), ("0", 63, 0.0)],
)
def test_wider_drafts_take_less_likely_tokens_unless_told_otherwise(
    given: str | float, max_draft_tokens: int, expected: float
) -> None:
    chosen = settings.Settings(min_token_prob=given)  # type: ignore[arg-type]
    config = chosen.engine_config(vocab_size=10, max_draft_tokens=max_draft_tokens, trees=True)
    assert config.min_token_prob == chosen.hybrid_config(max_nodes=max_draft_tokens, trees=True).min_token_prob
    assert config.min_token_prob == pytest.approx(expected)


def test_only_given_flags_count() -> None:
    assert parse() == {}


def test_the_launcher_s_settings_reach_the_scheduler_unchanged() -> None:
    chosen = settings.Settings(alpha=2.0, mode="chain")
    assert setting_sources.resolve_for_process(chosen.as_dict()) == chosen


def test_what_a_cut_draft_brings_later_counts_unless_a_model_drafts() -> None:
    of = {
        has_drafter: settings.Settings().control_config(has_drafter=has_drafter).objective
        for has_drafter in (False, True)
    }
    assert of == {False: "ahead", True: "run"}
    assert settings.Settings(controller_objective="step").control_config(has_drafter=True).objective == "step"
