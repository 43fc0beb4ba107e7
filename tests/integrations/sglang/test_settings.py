"""Flag over variable over file over default; everything unknown or out of range is refused by name."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.integrations.sglang import settings


def parse(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    settings.add_flags(parser)
    return settings.pop_flags(parser.parse_args(arguments))


def test_flag_wins_over_variable_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "agentspec.json"
    file.write_text(json.dumps({"alpha": 1.5, "max_pattern": 7, "budget_mb": 3}))
    environment = {"AGENTSPEC_CONFIG": str(file), "AGENTSPEC_ALPHA": "2.5", "AGENTSPEC_MAX_PATTERN": "8", "PATH": "x"}

    chosen = settings.resolve(parse("--agentspec-alpha", "3.5"), environment)

    assert (chosen.alpha, chosen.max_pattern, chosen.budget_mb) == (3.5, 8, 3)
    assert chosen.min_token_prob == settings.Settings().min_token_prob


def test_the_config_flag_wins_over_the_config_variable(tmp_path: Path) -> None:
    for name, alpha in (("flag.json", 2.0), ("variable.json", 3.0)):
        (tmp_path / name).write_text(json.dumps({"alpha": alpha}))

    chosen = settings.resolve(
        parse("--agentspec-config", str(tmp_path / "flag.json")), {"AGENTSPEC_CONFIG": str(tmp_path / "variable.json")}
    )

    assert chosen.alpha == 2.0


def test_every_setting_is_a_flag_a_variable_and_a_key(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "mode": "chain",
        "alpha": 2.0,
        "max_pattern": 5,
        "min_token_prob": 0.5,
        "budget_mb": 1,
        "breaker_failures": 2,
    }
    assert set(values) == set(settings.FIELDS)
    flags = [part for name, value in values.items() for part in (f"--agentspec-{name.replace('_', '-')}", str(value))]
    file = tmp_path / "agentspec.json"
    file.write_text(json.dumps(values))

    by_flag = settings.resolve(parse(*flags), {})
    by_variable = settings.resolve({}, {f"AGENTSPEC_{name.upper()}": str(value) for name, value in values.items()})
    by_file = settings.resolve({"config": str(file)}, {})

    assert by_flag == by_variable == by_file == settings.Settings(**values)


@pytest.mark.parametrize(
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
        ({"AGENTSPEC_CONFIG": "/nowhere/agentspec.json"}, "/nowhere/agentspec.json"),
    ],
)
def test_bad_variables_are_refused_by_name(environment: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        settings.resolve({}, environment)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"alfa": 2}', "alfa"),
        ('{"alpha": "2"}', "alpha"),
        ('{"max_pattern": 2.5}', "max_pattern"),
        ('{"budget_mb": true}', "budget_mb"),
        ("[1]", "one JSON object"),
        ("{", "not JSON"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, content: str, named: str) -> None:
    file = tmp_path / "agentspec.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=named):
        settings.resolve({"config": str(file)}, {})


def test_only_given_flags_count() -> None:
    assert parse() == {}


def test_the_launcher_s_settings_reach_the_scheduler_unchanged() -> None:
    chosen = settings.Settings(alpha=2.0, mode="chain")
    assert settings.resolve_for_process(chosen.as_dict()) == chosen
