"""The rows that are worth drafting for: the best of all sets, and what tau that is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from agentspec.policy.selection import Times, rows_worth_drafting


def goodput(rows: np.ndarray, suffix: np.ndarray, model: np.ndarray, pending: np.ndarray, times: Times) -> float:
    """The docstring's formula, term by term."""
    tokens = sum(1 + (model[i] if rows[i] else suffix[i]) for i in range(len(rows)))
    if not rows.any():
        return float(tokens / times.verify)
    seconds = times.verify_model + times.draft + times.draft_row * rows.sum()
    missing = int(pending[rows].sum())
    if missing:
        seconds += times.catch_up + times.catch_up_token * missing
    return float(tokens / seconds)


@pytest.mark.parametrize("seed", range(200))
def test_no_other_set_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = int(rng.integers(1, 7))
    suffix, model = rng.exponential(1.5, b), rng.exponential(1.5, b)
    pending = (rng.integers(0, 40, b) * (rng.random(b) < 0.5)).astype(np.int32)
    fit = rng.random(b) < 0.8
    verify = 1.0
    times = Times(verify, verify + 0.1 * rng.random(), *(rng.random(4) * [0.3, 0.2, 0.2, 0.02]))
    chosen = rows_worth_drafting(suffix, model, pending, fit, times)
    sets = [np.array(rows) for rows in product([False, True], repeat=b) if not (np.array(rows) & ~fit).any()]
    best = max(goodput(rows, suffix, model, pending, times) for rows in sets)
    assert not (chosen & ~fit).any()
    assert goodput(chosen, suffix, model, pending, times) == pytest.approx(best, rel=1e-12)


def test_of_one_row_the_choice_is_tau() -> None:
    times = Times(verify=1.0, verify_model=1.0, draft=0.2, draft_row=0.05, catch_up=0.0, catch_up_token=0.0)
    tau = times.break_even(3.0, rows=1, behind=False)
    assert tau == pytest.approx(4 / 1.25 - 1)
    for suffix, worth in ((tau - 1e-9, True), (tau + 1e-9, False)):
        chosen = rows_worth_drafting(
            np.array([suffix]), np.array([3.0]), np.zeros(1, np.int32), np.array([True]), times
        )
        assert chosen.tolist() == [worth]
    assert times.break_even(0.1, rows=1, behind=True) == 0.0, "it never pays"
