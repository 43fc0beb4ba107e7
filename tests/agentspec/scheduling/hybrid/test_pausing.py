"""The draft model is paused while it saves less time than it takes. Settings of a hybrid policy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from every import every

from agentspec import ConfigError
from agentspec.scheduling.hybrid import HybridConfig, PauseRule, parse_tau, pause_rule
from agentspec.scheduling.hybrid.pausing import PayoffPause, ZeroLengthPause


def changes(rule: PauseRule, steps: int, *, saved: float, drafts: int = 1, rows: int = 8) -> list[int]:
    """The steps, counted from 1, after which the rule paused or resumed the draft model. Every tenth step also reads a
    prompt that takes as long as ten steps."""
    found = []
    for step in range(1, steps + 1):
        before = rule.is_paused
        if step % 10 == 0:
            rule.observe_prompts(0.01)
        assert rule.is_paused == before, "only a decode step changes it"
        rule.observe_step(saved, 0 if before else drafts, 0.001, rows=rows, ready=rows)
        if rule.is_paused != before:
            found.append(step)
    return found


def test_it_is_paused_where_it_saves_less_than_it_costs() -> None:
    rule = pause_rule("payoff")
    assert not rule.is_paused
    assert changes(rule, 1000, saved=0.0011) == [], "a loss that is not clear"
    first, *_ = changes(rule, 1000, saved=0.0005)
    assert 20 < first < 400
    rule = pause_rule("payoff")
    assert changes(rule, 300, saved=0.0)[:2] == [32, 32 + 256], (
        "not before there was time to know, and only for a while"
    )
    # The time for prompts counts too. Without it a saving of 0.0009 would be enough.
    (step,) = changes(pause_rule("payoff"), 300, saved=0.0009)
    assert 128 < step <= 256, "what is less clear takes longer"


def test_a_step_of_few_rows_counts_in_part() -> None:
    assert changes(pause_rule("payoff"), 1000, saved=0.0, rows=64)[:1] == [32]
    (step,) = changes(pause_rule("payoff"), 1000, saved=0.0, rows=1)
    assert 16 + 16 * 8 <= step <= 32 * 8


def test_what_is_promised_before_steps_were_timed_does_not_keep_it_running() -> None:
    rule = pause_rule("payoff")
    assert changes(rule, 16, saved=1.0) == []
    assert changes(rule, 100, saved=0.0)[:1] == [16]
    rule = pause_rule("payoff")
    assert changes(rule, 17, saved=2.0) == [] == changes(rule, 300, saved=0.0), "later promises count"


def test_it_comes_back_as_soon_as_it_is_known_to_save_time() -> None:
    rule = pause_rule("payoff")
    changes(rule, 200, saved=0.0006)
    assert rule.is_paused
    assert changes(rule, 700, saved=0.0025) == [], "just above what it takes, it stays paused"
    rule = pause_rule("payoff")
    changes(rule, 100, saved=0.0)
    (step,) = changes(rule, 600, saved=0.01)
    assert step == 32 + 256 - 100, "at least some hundred steps lie between changes"
    assert not rule.is_paused


@pytest.mark.parametrize(("drafts", "trial"), [(0, 512), (1, 128), (16, 32)])
def test_what_it_may_save_by_now_is_tried_ever_more_seldom(drafts: int, trial: int) -> None:
    rule = pause_rule("payoff")
    steps = changes(rule, 80_000, saved=0.0, drafts=drafts)
    # Pauses and trials alternate, and a pause comes first.
    lengths = np.diff(steps).tolist()
    trials, pauses = lengths[1::2], lengths[::2]
    assert set(trials) == {trial}
    assert pauses[:6] == [256, 1024, 2048, 4096, 8192, 16384] and set(pauses[6:]) <= {16384}
    # In a trial the model turns out to save time, so it keeps running, and later pauses are short again.
    if rule.is_paused:
        changes(rule, 16384, saved=0.0)
        rule = _on_trial(rule)
    changes(rule, 5000, saved=0.01)
    assert not rule.is_paused
    changes(rule, 1200, saved=0.0)
    assert rule.is_paused
    assert changes(rule, 1200, saved=0.0) != [], "a trial after 1024 steps at most"


def test_a_trial_is_judged_by_drafts_of_rows_that_have_a_state_of_the_draft_model() -> None:
    rule = _on_trial(pause_rule("payoff"))
    for _ in range(100):
        assert not rule.wants_drafts, "passes take the whole batch's time, for few rows"
        rule.observe_prompts(0.01)
        rule.observe_step(0.0, 1, 0.001, rows=8, ready=5)
    assert not rule.is_paused, "no step of the trial counted"
    rule.observe_step(0.002, 0, 0.001, rows=8, ready=8)
    assert rule.wants_drafts, "whether or not a plan expects that they pay"
    for _ in range(30):
        rule.observe_step(0.002, 16, 0.001, rows=8, ready=8)
    assert not rule.wants_drafts and not rule.is_paused
    rule.observe_step(0.002, 16, 0.001, rows=8, ready=8)
    assert changes(rule, 1000, saved=0.0019) == [], "it saved more than it took, so the trial is over"
    rule = _on_trial(rule)
    for _ in range(511):
        rule.observe_step(0.0, 0, 0.001, rows=8, ready=5)
    assert changes(rule, 100, saved=0.0) == [1], "a trial ends at some time"


def _on_trial(rule: PauseRule) -> PauseRule:
    changes(rule, 200, saved=0.0)
    while rule.is_paused:
        rule.observe_step(0.0, 0, 0.001, rows=8, ready=8)
    return rule


def test_around_the_break_even_point_it_does_not_flutter() -> None:
    rng = np.random.default_rng(0)
    rule = pause_rule("payoff")
    found = 0
    for _ in range(5000):
        before = rule.is_paused
        rule.observe_step(float(rng.exponential(0.001)), int(not before), 0.001, rows=8, ready=8)
        found += rule.is_paused != before
    # Each trial adds two changes, and this many steps hold at most four trials.
    assert found <= 8


def test_an_endless_saving_is_never_outweighed() -> None:
    rule = PayoffPause()
    for _ in range(2000):
        rule.observe_prompts(1e9)
        rule.observe_step(math.inf, 1, 1e9, rows=8, ready=8)
    assert not rule.is_paused


def test_smartspecs_rule_counts_the_latest_steps_without_a_draft() -> None:
    rule = pause_rule("zero-length")
    for step in range(1000):
        rule.observe_step(0.0, int(step % 10 < 3), 1.0, rows=8, ready=8)
    assert not rule.is_paused, "just the threshold"
    assert changes(rule, 200, saved=0.0, drafts=0) == [1]
    assert changes(rule, 400, saved=0.0) == [], "it saves nothing"
    first, *rest = changes(rule, 400, saved=0.001)
    assert first == 30 and not rest, "30 of the latest 100 steps would have had a draft"
    rule = pause_rule("zero-length")
    assert changes(rule, 600, saved=0.0, drafts=0) == [256]
    with pytest.raises(ConfigError, match=r"got 1.5"):
        ZeroLengthPause(1.5)


def test_rules_by_name() -> None:
    rule = pause_rule("never")
    assert changes(rule, 2000, saved=0.0, drafts=0) == []
    with pytest.raises(ConfigError, match="one of payoff, zero-length, never, got 'always'"):
        pause_rule("always")


@pytest.mark.parametrize("name", ["payoff", "zero-length", "never"])
def test_ranks_that_observe_the_same_are_paused_alike(name: str) -> None:
    rng = np.random.default_rng(1)
    one, other = pause_rule(name), pause_rule(name)
    for _ in range(3000):
        saved, drafts = float(rng.exponential(0.002)), int(rng.random() < 0.3)
        for rule in (one, other):
            rule.observe_step(saved, drafts, 0.002, rows=8, ready=8)
        assert one.is_paused == other.is_paused


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
