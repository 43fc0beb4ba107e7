"""Settings of a hybrid policy: what is read and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from every import every

from agentspec import ConfigError
from agentspec.scheduling.hybrid import HybridConfig, parse_tau


@every(("text", "tau"), [("auto", "auto"), (" AUTO", "auto"), ("0", 0.0), ("1.5", 1.5), ("inf", math.inf)])
def test_tau_is_auto_or_a_number(text: str, tau: object) -> None:
    assert parse_tau(text) == tau


@every("text", ["", "-1", "nan", "-inf", "two", "1,5"])
def test_other_taus_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match=r'tau must be "auto", a number >= 0 or "inf", got .*; pass auto'):
        parse_tau(text)


@every(
    ("fields", "message"),
    [
        ({"rule": "best"}, r"rule must be one of expected, score, match-length, got 'best'"),
        ({"tau": -1.0}, r"tau must be .* got -1.0"),
        ({"tau": math.nan}, r"tau must be .* got nan"),
        ({"tau": True}, r"tau must be .* got True"),
        ({"tau": "1"}, r"tau must be .* got '1'"),
        ({"rule": "match-length", "tau": 2.0}, r"under the rule \"match-length\", got 2.0; set min_match"),
        ({"min_match": 0}, r"min_match must be an integer >= 1, got 0"),
        ({"max_nodes": 0}, r"max_nodes must be an integer >= 1, got 0"),
        ({"max_nodes": 1.5}, r"max_nodes must be an integer >= 1, got 1.5"),
        ({"union": True}, r"union must be one of auto, always, never, got True"),
        ({"trees": "no"}, r"trees must be True or False, got 'no'"),
        ({"min_token_prob": 1.1}, r"min_token_prob must be a number in \[0, 1\], got 1.1"),
        ({"prior_accepted": math.inf}, r"prior_accepted must be a number finite and >= 0, got inf"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HybridConfig(**fields)
