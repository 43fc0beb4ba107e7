"""What a draft model costs is learnt in spite of outliers, and what it brings apart for short and long texts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from draft_states import profile

from agentspec.scheduling import StepCost
from agentspec.scheduling.hybrid import ModelCosts
from agentspec.scheduling.hybrid.accepted_lengths import AcceptedLengths


def test_before_any_observation_a_draft_costs_a_quarter_of_a_verification() -> None:
    costs = ModelCosts()
    assert costs.draft(1) == costs.draft(8) > 0
    costs.observe_verify(0.5)
    assert costs.draft(3) == pytest.approx(0.125)
    assert 0 < costs.extend(10) < costs.draft(1)
    assert costs.draft(0) == costs.extend(0) == 0.0


def test_reading_prompts_is_not_judged_by_following_verifications() -> None:
    costs = ModelCosts()
    for tokens in list(range(1, 9)) * 10:
        costs.observe_extend(tokens, 0.001 + 0.001 * tokens)
    assert costs.read(300) == costs.extend(300) > 0.2
    for tokens in (80, 300, 120, 200) * 10:
        costs.observe_read(tokens, 0.004 + 2e-5 * tokens)
    assert costs.read(300) == pytest.approx(0.01, rel=0.15)
    assert costs.extend(8) == pytest.approx(0.009, rel=0.15)


def test_a_profile_is_where_costs_start() -> None:
    known = replace(profile(), target=StepCost(1e-6, 2e-4, 0.01), drafter=StepCost(1e-6, 1e-4, 1e-3))
    costs = ModelCosts(known)
    assert costs.draft_pass(8) == pytest.approx(0.0018)
    assert costs.draft(8) == pytest.approx(4 * 0.0018)
    for _ in range(300):
        costs.observe_draft(8, 4, 0.02)
    assert costs.draft(8) == pytest.approx(0.02, rel=0.15)
    without = ModelCosts(replace(known, drafter=None))
    assert without.draft(1) == pytest.approx(0.25 * (0.01 + 2e-4))


def test_lines_are_found_among_outliers() -> None:
    rng = np.random.default_rng(0)
    costs = ModelCosts()
    for step in range(400):
        rows, width = int(rng.integers(1, 9)), int(rng.integers(1, 17))
        # One step in ten waits for something else, and the first two steps compile.
        slow = 1000.0 if step < 2 else (30.0 if step % 10 == 0 else 1.0)
        noise = slow * (1 + 0.05 * rng.standard_normal())
        passes = int(rng.integers(1, 9))
        costs.observe_draft(rows, passes, (0.002 + passes * (0.0005 + 0.0001 * rows)) * noise)
        costs.observe_extend(width, (0.001 + 0.0001 * width) * noise)
    assert costs.draft_pass(8) == pytest.approx(0.0013, rel=0.25)
    for _ in range(100):
        costs.observe_draft(8, 6, 0.0098)
    assert costs.draft(1) == pytest.approx(0.0056, rel=0.25)
    assert costs.draft(8) == pytest.approx(0.0098, rel=0.25)
    assert costs.extend(16) == pytest.approx(0.0026, rel=0.25)


def test_times_that_no_clock_can_have_are_left_out() -> None:
    costs = ModelCosts()
    for seconds in (math.nan, math.inf, 0.0, -1.0):
        costs.observe_draft(1, 4, seconds)
    costs.observe_draft(0, 4, 1.0)
    assert costs.draft(1) == ModelCosts().draft(1)


CONTEXTS = {"short": 900, "long": 20_000}


def _expected(lengths: AcceptedLengths, *contexts: int) -> list[float]:
    """Of new requests with texts of so many tokens."""
    found: list[float] = lengths.expected_of(["new"] * len(contexts), np.array(contexts)).tolist()
    return found


def _learn(lengths: AcceptedLengths, steps: int) -> None:
    """Of short texts three tokens of a draft are accepted, and of long ones none. Each request is drafted for once."""
    for step in range(steps):
        for name, accepted in (("short", 3.0), ("long", 0.0)):
            lengths.observe(f"{name} {step}", accepted, CONTEXTS[name])
        lengths.next_step()


def test_a_new_request_is_expected_to_bring_what_texts_of_its_length_did() -> None:
    lengths = AcceptedLengths(2.0)
    assert _expected(lengths, 900, 20_000) == [2.0, 2.0]
    _learn(lengths, 40)
    short, long = _expected(lengths, 900, 20_000)
    assert short > 2.7 and long < 0.3
    assert _expected(lengths, 600, 17_000) == [short, long], "texts of about the same length"
    assert _expected(lengths, 3000) == [pytest.approx(lengths.mean)], "a length that was never seen"
    assert lengths.expected("new") == pytest.approx(lengths.mean), "a length that is not known"


def test_drafts_of_long_texts_do_not_change_what_short_ones_promise() -> None:
    lengths = AcceptedLengths(2.0)
    _learn(lengths, 40)
    before, _ = _expected(lengths, 900, 20_000)
    for step in range(200):
        lengths.observe(f"more {step}", 0.0, 20_000)
    after, _ = _expected(lengths, 900, 20_000)
    assert lengths.mean < 0.5
    assert after > 0.85 * before


def test_a_request_s_own_drafts_outweigh_those_of_its_length() -> None:
    lengths = AcceptedLengths(2.0)
    _learn(lengths, 40)
    for _ in range(10):
        lengths.observe("own", 3.0, 20_000)
    own, other = lengths.expected_of(["own", "new"], np.array([20_000, 20_000])).tolist()
    assert own > 2.0 and other < 1.0


def test_texts_of_any_length_have_a_place() -> None:
    lengths = AcceptedLengths(2.0)
    for context in (1, 1 << 31, 1 << 40):
        lengths.observe(str(context), 1.0, context)
    assert _expected(lengths, 1 << 33, 1 << 50)[0] == _expected(lengths, 1 << 50)[0]
