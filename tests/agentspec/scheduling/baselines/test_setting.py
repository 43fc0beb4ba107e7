"""The setting `baseline`: each method replaces its own part, with its own keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from every import every

from agentspec.errors import ConfigError
from agentspec.scheduling import ControllerName
from agentspec.scheduling.baselines.setting import BASELINES, KEYS, parse_baseline
from agentspec.scheduling.registry import ROW_RULES

PAGE = Path(__file__).parents[4] / "docs" / "configuration.md"


@every(
    ("text", "engine", "hybrid", "control", "pause"),
    [
        ("", {}, {}, {}, "payoff"),
        ("suffixdecoding", {"rule": "suffixdecoding"}, {"rule": "score"}, {}, "payoff"),
        (
            "suffixdecoding:alpha=2.5,tau=inf",
            {"rule": "suffixdecoding", "alpha": 2.5},
            {"rule": "score", "tau": float("inf")},
            {},
            "payoff",
        ),
        ("score:tau=4", {}, {"rule": "score", "tau": 4.0}, {}, "payoff"),
        ("match-length:min_match=6", {}, {"rule": "match-length", "min_match": 6}, {}, "payoff"),
        ("fixed : length = 0", {}, {}, {"controller": "fixed", "length": 0}, "payoff"),
        ("roofline", {}, {}, {"controller": "roofline"}, "payoff"),
        ("sweep", {}, {}, {"controller": "sweep"}, "payoff"),
        (
            "batch-table:table=1:7,8:3,32:0,acceptance=0.6",
            {},
            {},
            {"controller": "batch-table", "table": ((1, 7), (8, 3), (32, 0)), "acceptance": 0.6},
            "payoff",
        ),
        (
            "smartspec:length_model=confidence,min_confidence=0.4,window=9,pause=zero-length",
            {},
            {},
            {"controller": "smartspec", "length_model": "confidence", "min_confidence": 0.4, "window": 9},
            "zero-length",
        ),
        (
            "suffixdecoding:tau=1 + fixed:length=63",
            {"rule": "suffixdecoding"},
            {"rule": "score", "tau": 1.0},
            {"controller": "fixed", "length": 63},
            "payoff",
        ),
    ],
)
def test_a_baseline_replaces_its_part(
    text: str, engine: dict[str, Any], hybrid: dict[str, Any], control: dict[str, Any], pause: str
) -> None:
    found = parse_baseline(text)
    assert (found.of("engine"), found.of("hybrid"), found.of("control"), found.pause) == (
        engine,
        hybrid,
        control,
        pause,
    )


@every(
    ("text", "problem"),
    [
        ("goodput", "'goodput' is unknown; known are suffixdecoding, score, match-length, smartspec"),
        ("fixed+", "'' is unknown"),
        ("fixed+smartspec", "its parts set controller twice"),
        ("suffixdecoding+score", "its parts set rule twice"),
        ("fixed:length=1,length=2", "its parts set length twice"),
        ("fixed:4", "got '4' in place of key=value"),
        ("fixed:", "got '' in place of key=value"),
        ("fixed:length=four", "length must be a number, got 'four'"),
        ("fixed:length=-1", "length must be an integer >= 0, got -1"),
        ("fixed:alpha=1", "fixed has no key 'alpha'; it has length"),
        ("roofline:length=1", "roofline has no key 'length'; it has none"),
        ("suffixdecoding:alpha=0", "alpha must be a number finite and > 0, got 0.0"),
        ("score:tau=-1", 'tau must be "auto", a number >= 0 or "inf", got \'-1\''),
        ("match-length:min_match=0", "min_match must be an integer >= 1, got 0"),
        ("smartspec:length_model=neck", "length_model must be one of chain, tree, confidence, got 'neck'"),
        ("smartspec:min_confidence=2", "min_confidence must be a number in [0, 1], got 2.0"),
        ("smartspec:window=0", "window must be an integer >= 1, got 0"),
        ("smartspec:pause=always", "the rule of pausing must be one of payoff, zero-length, never, got 'always'"),
        *((f"batch-table:table={table}", "table must") for table in ("1", "1:x", "8:1,1:2", "0:3", "1:-1", "1:2:3")),
    ],
)
def test_a_baseline_that_is_none_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)) as refused:
        parse_baseline(text)
    assert str(refused.value).startswith(f"the baseline {text!r} cannot be used: ")


def test_every_published_method_has_a_name_and_every_key_a_method() -> None:
    named = {value for method in BASELINES.values() for value in method.replaced.values()}
    assert named == {*get_args(ControllerName), *ROW_RULES, "suffixdecoding"} - {"goodput"}
    assert {key for method in BASELINES.values() for key in method.keys} == set(KEYS)


def test_the_page_of_settings_has_every_baseline_and_its_keys() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|.*\| ([^|]*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {name: set(re.findall(r"`([a-z_]+)`", keys)) for name, keys in rows if name in BASELINES}
    assert documented == {name: set(method.keys) for name, method in BASELINES.items()}
