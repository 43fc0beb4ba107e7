"""Flags override variables, which override the file, which overrides defaults. What is unknown or out of range is
refused by name."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_states import profile as drawn_profile
from every import every
from programs import output_of

from agentspec.config import EngineConfig
from agentspec.errors import ConfigError
from agentspec.estimates import NUM_WEIGHTS, Estimates
from agentspec.integrations.sglang import setting_sources, settings
from agentspec.integrations.sglang.settings import FIELDS, FLAGS, MEASUREMENTS, Settings, flag_of, variable_of
from agentspec.scheduling import ControlConfig
from agentspec.scheduling.hybrid import HybridConfig
from agentspec.store.config import SharingConfig


def parse(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    setting_sources.add_flags(parser)
    return setting_sources.pop_flags(parser.parse_args(arguments))


def from_file(content: str, folder: Path, name: str = "agentspec.json") -> Settings:
    file = folder / name
    file.write_text(content)
    return setting_sources.resolve({"config": str(file)}, {})


def from_variables(**variables: str) -> Settings:
    return setting_sources.resolve({}, {f"AGENTSPEC_{name.upper()}": text for name, text in variables.items()})


# A value that is not the default, for every setting and every variable for measurements. The names of files are made
# by the test.
VALUES: dict[str, Any] = {
    "mode": "chain",
    "baseline": "suffixdecoding:alpha=2+fixed:length=3",
    "base": "EAGLE3",
    "tau": "1.5",
    "min_token_prob": "0.5",
    "budget_mb": 1,
    "conversation_mb": 2,
    "max_siblings": 3,
    "num_threads": 2,
    "estimates": "estimates.json",
    "corpora": "",
    "profile": "profile.json",
    "store": "redis://127.0.0.1:1/0",
    "store_optional": True,
    "store_model": "m",
    "store_password_file": "p",
    "store_key_file": "k",
    "store_ttl_days": 1.5,
    "store_quota_mb": 4,
    "namespace_from": "custom_params.team",
    "namespace_key_file": "n",
    "acceptance_head": "none",
    "stop_threshold": "0.7",
    "widths": "1,4",
    "keep_step_times": False,
    "admin_corpora_mb": 7,
    "admin_folder": ".",
}
MEASURED: dict[str, Any] = {
    "replay": "requests",
    "replay_unmatched": "free",
    "profiling": True,
    "stream_order": "off",
    "hybrid_union": "always",
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that VALUES names, in the current folder."""
    monkeypatch.chdir(tmp_path)
    Estimates.default().save(tmp_path / "estimates.json")
    drawn_profile().save(tmp_path / "profile.json")


@pytest.mark.usefixtures("files")
def test_every_setting_is_a_variable_and_a_key(tmp_path: Path) -> None:
    assert set(VALUES) == set(FIELDS) and set(MEASURED) == set(MEASUREMENTS)
    expected = Settings(**VALUES)
    assert from_variables(**{name: str(value) for name, value in VALUES.items()}) == expected
    # Any JSON is valid YAML.
    for name in ("agentspec.json", "agentspec.yaml"):
        assert from_file(json.dumps(VALUES), tmp_path, name) == expected
    flags = [part for name in FLAGS for part in (flag_of(name), str(VALUES[name]))]
    assert setting_sources.resolve(parse(*flags), {}) == Settings(**{name: VALUES[name] for name in FLAGS})
    assert from_variables(**{name: str(value) for name, value in MEASURED.items()}) == Settings(**MEASURED)
    defaults = Settings().as_dict()
    assert {name for name, value in {**VALUES, **MEASURED}.items() if value == defaults[name]} == {"corpora"}


def test_corpora_are_separated_by_colons(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        Path(path).touch()
    assert from_variables(corpora=":".join(paths)).corpus_paths == paths
    with pytest.raises(ConfigError, match="corpora need agentspec's own drafts, got the baseline 'suffixdecoding'"):
        from_variables(corpora=paths[0], baseline="suffixdecoding")
    assert from_variables(corpora=paths[0], baseline="fixed").corpus_paths == paths[:1]


@every(
    ("flags", "variables", "file", "expected"),
    [
        ({}, {}, {}, {"tau": "auto", "budget_mb": 256}),
        ({}, {}, {"tau": "1.5", "budget_mb": 3}, {"tau": "1.5", "budget_mb": 3}),
        ({}, {"tau": "2.5"}, {"tau": "1.5", "budget_mb": 3}, {"tau": "2.5", "budget_mb": 3}),
        ({"tau": "3.5"}, {"tau": "2.5", "budget_mb": "4"}, {"tau": "1.5"}, {"tau": "3.5", "budget_mb": 4}),
    ],
)
@pytest.mark.parametrize("named_by", ["flag", "variable", "both"])
def test_flag_wins_over_variable_over_file_over_default(
    named_by: str,
    flags: dict[str, str],
    variables: dict[str, str],
    file: dict[str, object],
    expected: dict[str, object],
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "agentspec.json", tmp_path / "other.json"
    path.write_text(json.dumps(file))
    other.write_text(json.dumps({"tau": "9"}))
    given = [part for name, value in flags.items() for part in (flag_of(name), value)]
    environment = {"PATH": "x", **{variable_of(name): value for name, value in variables.items()}}
    if named_by != "variable":
        given += ["--agentspec-config", str(path)]
    if named_by != "flag":
        environment["AGENTSPEC_CONFIG"] = str(path if named_by == "variable" else other)
    chosen = setting_sources.resolve(parse(*given), environment)
    assert chosen == Settings(**expected)


@pytest.mark.parametrize(
    ("flags", "named"), [({"config": "/nowhere/a.json"}, "--agentspec-config"), ({}, "AGENTSPEC_CONFIG")]
)
def test_a_missing_file_is_refused_by_the_name_that_was_used(flags: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=f"nowhere.*check {named}$"):
        setting_sources.resolve(flags, {"AGENTSPEC_CONFIG": "/nowhere/b.json"})


def test_settings_alone_read_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTSPEC_MAX_SIBLINGS", "2")
    assert Settings().max_siblings == 8 and parse() == {}


@every(
    ("variables", "problem"),
    [
        ({"alphaa": "1"}, "the variable AGENTSPEC_ALPHAA is unknown; known are AGENTSPEC_MODE, "),
        ({"budget_mb": "much"}, "budget_mb must be a whole number >= 0, got 'much'; correct the flag"),
        ({"budget_mb": "-1"}, "budget_mb must be a whole number >= 0, got -1"),
        ({"min_token_prob": "1.5"}, "min_token_prob must be auto or a number"),
        ({"mode": "forest"}, "mode must be one of auto, tree, chain, got 'forest'"),
        ({"admin_corpora_mb": "-1"}, "admin_corpora_mb must be a whole number >= 0, got -1"),
        ({"admin_folder": "/nowhere"}, "admin_folder must be a folder, got '/nowhere'"),
        ({"conversation_mb": "1.5"}, "conversation_mb must be a whole number >= 0, got '1.5'"),
        ({"max_siblings": "65"}, "max_siblings must be a whole number >= 0 and <= 64, got 65"),
        ({"num_threads": "-1"}, "num_threads must be a whole number >= 0 and <= 64, got -1"),
        ({"num_threads": "65"}, "num_threads must be a whole number >= 0 and <= 64, got 65"),
        ({"estimates": "/nowhere/estimates.json"}, "/nowhere/estimates.json"),
        ({"profile": "/nowhere/profile.json"}, "/nowhere/profile.json"),
        ({"corpora": ":/nowhere/a:/nowhere/b"}, "/nowhere/a, /nowhere/b, which are not there"),
        ({"store": "mongodb://a"}, "mongodb"),
        ({"store_optional": "perhaps"}, "AGENTSPEC_STORE_OPTIONAL"),
        ({"store_ttl_days": "-1"}, "store_ttl_days must be a number >= 0, got -1"),
        ({"store_quota_mb": "-1"}, "store_quota_mb must be a whole number >= 0, got -1"),
        ({"namespace_from": "user"}, "namespace_from must be one of auto, extra_key"),
        ({"tau": "often"}, 'tau must be "auto", a number >= 0 or "inf", got \'often\''),
        ({"tau": "-1"}, "tau must be"),
        ({"tau": "1", "baseline": "score:tau=2"}, "tau must be set once, got '1' beside the baseline 'score:tau=2'"),
        ({"baseline": "guess"}, "the baseline 'guess' cannot be used: 'guess' is unknown"),
        ({"baseline": "roofline"}, "profile"),
        ({"tau": "3", "baseline": "match-length"}, 'tau must be "auto", 0 or inf under the rule "match-length"'),
        ({"stop_threshold": "0"}, "stop_threshold must be a number > 0 and <= 1, auto, head or theorem, got '0'"),
        ({"stop_threshold": "1.5"}, "stop_threshold must be"),
        ({"widths": "4,x"}, "widths must be"),
        ({"config": "/nowhere/agentspec.json"}, "/nowhere/agentspec.json"),
        (
            {"profiling": "maybe"},
            "profiling must be true or false, got 'maybe'; correct the variable AGENTSPEC_PROFILING",
        ),
        ({"hybrid_union": "often"}, "hybrid_union must be one of auto, always, never, got 'often'"),
        ({"replay": "/nowhere/calls.jsonl"}, "replay must be 'requests' or files"),
    ],
)
def test_bad_variables_are_refused_by_name(variables: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        from_variables(**variables)


@every(
    ("content", "problem"),
    [
        ('{"alfa": 2}', "the key alfa of "),
        ('{"max_siblings": "2"}', "max_siblings must be a whole number"),
        ('{"max_siblings": 2.5}', "max_siblings must be a whole number"),
        ('{"budget_mb": true}', "budget_mb must be a whole number"),
        ('{"corpora": ["a"]}', "corpora must be text, got ['a']"),
        ('{"estimates": null}', "estimates must be text, got None"),
        ('{"tau": [2]}', "tau must be text, got [2]; correct the flag --agentspec-tau, the variable AGENTSPEC_TAU or"),
        ('{"store_ttl_days": Infinity}', "store_ttl_days must be a number >= 0, got inf"),
        ('{"store": ["redis://:hush@a"]}', "store must be text, got a value of type list"),
        ('{"stop_threshold": "neck"}', "stop_threshold must be a number"),
        ("[1]", "one JSON object"),
        ("{", "not JSON"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, content: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        from_file(content, tmp_path)


@every(
    ("content", "expected"),
    [
        ("# why\ntau: .inf\nwidths: 8\nstore_optional: yes\nstore_ttl_days: 2\n",
         {"tau": "inf", "widths": "8", "store_optional": True, "store_ttl_days": 2.0}),
        ("baseline: batch-table:table=1:7,8:3\n", {"baseline": "batch-table:table=1:7,8:3"}),
        ("# nothing yet\n", {}),
    ],
)  # fmt: skip
def test_yaml_files(tmp_path: Path, content: str, expected: dict[str, object]) -> None:
    assert from_file(content, tmp_path, "agentspec.yml") == Settings(**expected)


def test_a_bad_yaml_file_is_refused_without_its_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not YAML: .* in line") as refused:
        from_file("store: 'redis://:hush@a\nbudget_mb: 2\n", tmp_path, "agentspec.yml")
    assert "hush" not in str(refused.value)


def test_all_unknown_variables_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match="AGENTSPEC_ALPHA is unknown.*\n.*AGENTSPEC_X is unknown"):
        from_variables(alpha="1", x="1")
    with pytest.raises(ConfigError, match="unknown setting alpah; known are mode, "):
        Settings(alpah=1)


@every(
    ("baseline", "equivalent"),
    [
        ("suffixdecoding:alpha=2,tau=4", {"engine": {"rule": "suffixdecoding", "alpha": 2.0}, "hybrid": {"rule": "score", "tau": 4.0}}),
        ("match-length", {"hybrid": {"rule": "match-length"}}),
        ("fixed", {"control": {"controller": "fixed", "length": 15}}),
        ("smartspec:length_model=tree,acceptance=0.6", {"control": {"controller": "smartspec", "length_model": "tree", "acceptance": 0.6}}),
    ],
)  # fmt: skip
def test_a_baseline_becomes_the_parts_configurations(baseline: str, equivalent: dict[str, dict[str, Any]]) -> None:
    plain, chosen = Settings(), Settings(baseline=baseline)
    engine = {"vocab_size": 10, "max_draft_tokens": 7, "trees": True}
    assert chosen.engine_config(**engine) == replace(plain.engine_config(**engine), **equivalent.get("engine", {}))
    hybrid = {"max_nodes": 7, "trees": True}
    assert chosen.hybrid_config(**hybrid) == replace(plain.hybrid_config(**hybrid), **equivalent.get("hybrid", {}))
    for has_drafter in (False, True):
        of = plain.control_config(has_drafter=has_drafter)
        assert chosen.control_config(has_drafter=has_drafter) == replace(of, **equivalent.get("control", {}))
    assert chosen.draft_model_pause == "payoff"
    assert Settings(baseline="smartspec:pause=zero-length").draft_model_pause == "zero-length"


def test_default_settings_are_the_library_s_own() -> None:
    plain = Settings()
    assert plain.hybrid_config(max_nodes=15, trees=True) == HybridConfig()
    assert plain.control_config(has_drafter=False) == ControlConfig()
    # What a cut draft brings later counts unless a model drafts.
    assert plain.control_config(has_drafter=True) == ControlConfig(objective="run")
    assert plain.sharing_config() == SharingConfig()
    served = plain.engine_config(vocab_size=None, max_draft_tokens=7, trees=True)
    # The number of threads, which a server takes from its machine, does not change drafts.
    assert EngineConfig.served(7) == replace(served, background=False, num_threads=1)


def test_secrets_are_no_settings_and_are_not_shown() -> None:
    secrets = dict.fromkeys(setting_sources.SECRET_VARIABLES, "hush")
    chosen = setting_sources.resolve({}, {**secrets, "AGENTSPEC_STORE": "redis://user:hush@127.0.0.1:1"})
    assert "hush" not in repr(chosen)
    assert "hush" not in str(chosen.shown())
    with pytest.raises(ConfigError) as refused:
        from_variables(store="mongodb://user:hush@a")
    assert "hush" not in str(refused.value)
    # The scheduler process gets the URL with its secrets.
    assert setting_sources.resolve_for_process(chosen.as_dict()) == chosen


@pytest.mark.usefixtures("files")
def test_the_launcher_s_settings_reach_the_scheduler_unchanged() -> None:
    chosen = Settings(**VALUES, **MEASURED)
    assert setting_sources.resolve_for_process(chosen.as_dict()) == chosen


def test_what_is_no_flag_is_refused_with_the_variable_and_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    for name in {*FIELDS, *MEASUREMENTS} - set(FLAGS):
        with pytest.raises(SystemExit):
            parse(flag_of(name), "hush")
        told = capsys.readouterr().err
        assert f"error: {name} must be set by the variable {variable_of(name)}" in told and "hush" not in told
        assert (f" or the key {name} of the settings file, got the flag {flag_of(name)}; " in told) == (name in FIELDS)
        assert ("pass --agentspec-config FILE\n" in told) == (name in FIELDS)


def test_variables_for_measurements_are_no_keys_of_the_file(tmp_path: Path) -> None:
    for name, value in MEASURED.items():
        with pytest.raises(ConfigError, match=f"the key {name} of .* must be the variable {variable_of(name)}; set it"):
            from_file(json.dumps({name: value}), tmp_path)


def test_sglang_s_file_of_arguments_passes_on_every_flag_and_what_is_none() -> None:
    """Its parser of --config FILE refuses the keys of flags that do not store a value, and names no remedy."""
    parser = argparse.ArgumentParser(add_help=False)
    setting_sources.add_flags(parser)
    assert [action.dest for action in parser._actions if not isinstance(action, argparse._StoreAction)] == []


def test_there_are_at_most_30_settings_and_12_flags() -> None:
    assert len(FIELDS) <= 30
    parser = argparse.ArgumentParser(prog="x")
    setting_sources.add_flags(parser)
    shown = set(re.findall(r"--agentspec-[a-z-]+", parser.format_usage()))
    assert shown == {"--agentspec-config", *map(flag_of, FLAGS)} and len(shown) <= 12


def test_the_core_loads_no_engine() -> None:
    modules = f"{setting_sources.__name__}, agentspec.store, agentspec.integrations.sglang.plugin"
    code = f"import sys, {modules}; print({{'torch', 'sglang', 'redis', 'scipy'}} & set(sys.modules))"
    assert output_of(sys.executable, "-P", "-c", code) == "set()\n"


def test_settings_become_the_engine_s(tmp_path: Path) -> None:
    weights = np.full(NUM_WEIGHTS, 0.5, np.float32)
    Estimates(weights).save(tmp_path / "estimates.json")
    chosen = Settings(
        budget_mb=3, conversation_mb=2, max_siblings=4, num_threads=2, estimates=str(tmp_path / "estimates.json")
    )
    config = chosen.engine_config(vocab_size=10, max_draft_tokens=7, trees=False, tokenizer="t")
    assert (config.mode, config.vocab_size, config.max_draft_tokens) == ("chain", 10, 7)
    assert (config.budget_bytes, config.conversation_bytes) == (3 << 20, 2 << 20)
    assert (config.max_siblings, config.num_threads, config.tokenizer, config.background) == (4, 2, "t", True)
    assert config.estimates is not None
    np.testing.assert_array_equal(config.estimates.weights, weights)


@every(
    ("mode", "trees", "expected"),
    [("auto", True, "tree"), ("auto", False, "chain"), ("chain", True, "chain"), ("tree", True, "tree")],
)
def test_the_mode_follows_the_attention_backend(mode: Any, trees: bool, expected: str) -> None:
    assert Settings(mode=mode).engine_config(vocab_size=10, max_draft_tokens=7, trees=trees).mode == expected
    with pytest.raises(ConfigError, match="mode tree needs an attention backend that verifies trees"):
        Settings(mode="tree").engine_config(vocab_size=10, max_draft_tokens=7, trees=False)


def test_settings_become_the_store_s() -> None:
    chosen = Settings(store_ttl_days=0.5, store_quota_mb=3).sharing_config()
    assert (chosen.ttl_seconds, chosen.quota_bytes) == (43200.0, 3 << 20)


@every(("cores", "threads"), [(1, 1), (5, 5), (8, 8), (9, 8), (200, 8)])
def test_threads_are_one_a_core_and_no_more_than_eight(
    cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    for given, expected in (({}, threads), ({"num_threads": 0}, threads), ({"num_threads": 20}, 20)):
        chosen = Settings(**given)
        assert chosen.engine_config(vocab_size=10, max_draft_tokens=7, trees=True).num_threads == expected


@every(
    ("given", "max_draft_tokens", "expected"),
    [("auto", 7, 0.02), ("auto", 15, 0.16 / 15), ("auto", 63, 0.16 / 63), (0.3, 63, 0.3), ("0", 63, 0.0)],
)
def test_wider_drafts_take_less_likely_tokens_unless_told_otherwise(
    given: str | float, max_draft_tokens: int, expected: float
) -> None:
    chosen = Settings(min_token_prob=given)
    config = chosen.engine_config(vocab_size=10, max_draft_tokens=max_draft_tokens, trees=True)
    assert config.min_token_prob == chosen.hybrid_config(max_nodes=max_draft_tokens, trees=True).min_token_prob
    assert config.min_token_prob == pytest.approx(expected)
