"""Rounds of speculation, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from every import every

from agentspec.evals.research.specdec_rounds import (
    BatchCounts,
    Counts,
    count_batches,
    count_fixed,
    count_rounds,
    count_stopped,
    least_verification,
)
from agentspec.scheduling.costs.cost_model import StepCost

# Seven tokens follow the first. For each of them: the number of correct tokens in a draft that begins with it.
#   counted token   1  2  3  4  5  6  7
MATCHES = np.array([3, 2, 1, 0, 2, 1, 1])


@pytest.mark.parametrize(
    ("length", "target", "discarded"),
    [
        # One token is drafted and accepted at places 0, 2, 4 and 6. Each round adds one token of the target.
        (1, 4, 0),
        # Two tokens are accepted at place 0 and none at place 3. Two are accepted at place 4, where the text ends.
        (2, 3, 2),
        # Three tokens are accepted at place 0. The draft at place 4 has two correct tokens.
        (4, 2, 3),
    ],
)
def test_fixed_lengths(length: int, target: int, discarded: int) -> None:
    assert count_fixed([MATCHES], length) == Counts(7, target, target * length, discarded)


def test_each_start_has_its_own_length() -> None:
    # Accepted are three of three tokens at place 0, one of one at place 4, and one of two at place 6.
    assert count_rounds(MATCHES, np.array([3, 9, 9, 9, 1, 9, 2])) == Counts(7, 3, 6, 1)


def test_lengths_come_from_the_rule_and_totals_from_all_texts() -> None:
    # The rule is certain of all three tokens at the first start and of none elsewhere, where it drafts one token.
    p = np.zeros((7, 3))
    p[0] = 1
    assert count_stopped([(MATCHES, p)], 0.5) == Counts(7, 3, 5, 0)
    assert count_stopped([(MATCHES, p)] * 2, 0.5) == Counts(14, 6, 10, 0)


def test_rates_and_latency() -> None:
    counts = Counts(tokens=10, target_forwards=4, draft_forwards=8, discarded=2)
    assert (counts.discard_rate, counts.verification_rate) == (0.2, 0.4)
    assert counts.latency(5.0, 1.0) == pytest.approx(2.8)
    # Equation 2.3 says the same, where N_draft + N_target = N + N_discarded.
    assert counts.latency(5.0, 1.0) == pytest.approx(1 + 1 * 0.2 + (5 - 1) * 0.4)


@pytest.mark.parametrize("by_row", [False, True])
def test_a_batch_of_one_text_is_that_text(by_row: bool) -> None:
    p = np.zeros((7, 3))
    p[0] = 1
    one = count_stopped([(MATCHES, p)] * 3, 0.5)
    found = count_batches([(MATCHES, p)] * 3, 0.5, 1, by_row=by_row)
    assert (found.tokens, found.steps, found.passes, found.discarded) == (
        one.tokens,
        one.target_forwards,
        one.draft_forwards,
        one.discarded,
    )
    assert found.verified == found.padded == one.target_forwards + one.draft_forwards


def test_a_batch_ends_by_row_or_together() -> None:
    # One text is drafted with three tokens a round, the other with one.
    texts = [(MATCHES, np.ones((7, 3))), (MATCHES, np.zeros((7, 3)))]
    by_row, together = (count_batches(texts, 0.5, 2, by_row=by_row) for by_row in (True, False))
    # The first text takes rounds at 0 and 4, the second at 0, 2, 4 and 6. The last two have one row of one token.
    assert by_row == BatchCounts(14, steps=4, rows=6, passes=8, drafting_rows=14, verified=16, padded=20, discarded=1)
    # The longer drafts of its neighbour carry the second text on as fast.
    assert together == BatchCounts(14, steps=2, rows=4, passes=6, drafting_rows=12, verified=16, padded=16, discarded=2)


def test_seconds_of_a_batch() -> None:
    counts = BatchCounts(10, steps=2, rows=4, passes=6, drafting_rows=12, verified=14, padded=16)
    target, drafter = StepCost(0.001, 0.1, 3.0), StepCost(0.002, 0.01, 0.5)
    rest = 2 * 3.0 + 0.001 * 4 * 50 + 6 * 0.5 + 12 * 0.01 + 0.002 * 12 * 50
    assert counts.seconds(target, drafter, 50, padded=False) == pytest.approx((rest + 14 * 0.1) / 10)
    assert counts.seconds(target, drafter, 50, padded=True) == pytest.approx((rest + 16 * 0.1) / 10)


@every(("at", "reached"), [(0.1, None), (0.2, 0.6), (0.3, 0.5), (0.6, 0.3), (2.0, 0.2)])
def test_a_frontier_between_and_beyond_its_points(at: float, reached: float | None) -> None:
    """(0.5, 0.45) lies above the line from (0.4, 0.4) to (0.8, 0.2), and (0.9, 0.5) is worse in both."""
    points = [(0.8, 0.2), (0.2, 0.6), (0.4, 0.4), (0.5, 0.45), (0.9, 0.5)]
    assert least_verification(points, at) == (None if reached is None else pytest.approx(reached))
