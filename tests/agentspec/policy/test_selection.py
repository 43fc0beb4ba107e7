"""Whether the passes of the draft model pay, by the formula of goodput, and what tau that is."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec.policy import StepCosts
from agentspec.policy.selection import StepTimes, seconds_saved


@pytest.mark.parametrize("seed", range(100))
def test_the_passes_save_time_where_they_raise_goodput(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = int(rng.integers(1, 7))
    suffix, model = rng.exponential(1.5, b), rng.exponential(1.5, b)
    fit = rng.random(b) < 0.8
    times = StepTimes(plain=1.0, drafted=1.0 + 0.6 * rng.random())
    margin = float(rng.choice([0.0, 0.3]))
    # The docstring's formula, term by term.
    with_model = sum(1 + (max(suffix[i], (1 + model[i]) / (1 + margin) - 1) if fit[i] else suffix[i]) for i in range(b))
    alone = sum(1 + suffix[i] for i in range(b))
    saved = seconds_saved(suffix, model, fit, times, margin)
    assert (saved > 0) == (with_model / times.drafted > alone / times.plain)
    assert saved == pytest.approx(with_model / (alone / times.plain) - times.drafted)
    everything = seconds_saved(suffix, model, None, times, margin)
    assert everything == seconds_saved(suffix, model, np.ones(b, np.bool_), times, margin) >= saved


def test_of_one_row_the_choice_is_tau() -> None:
    times = StepTimes(plain=1.0, drafted=1.25)
    tau = times.break_even(3.0, margin=0.0)
    assert tau == pytest.approx(4 / 1.25 - 1)
    one = np.ones(1, np.bool_)
    for suffix, worth in ((tau - 1e-9, True), (tau + 1e-9, False)):
        assert (seconds_saved(np.array([suffix]), np.array([3.0]), one, times, 0.0) > 0) == worth
    assert times.break_even(0.1, margin=0.0) == 0.0, "it never pays"


def test_a_step_takes_the_rest_and_with_the_model_what_following_a_wider_one_adds() -> None:
    costs = StepCosts()
    for tokens in (8, 16, 32, 64) * 4:
        costs.observe_verify(tokens, 1.0 + 0.01 * tokens)
        costs.observe_extend(tokens, 0.1 + 0.001 * tokens)
        costs.observe_draft(4, 4, 0.4)
    costs.rest = 2.0
    times = StepTimes.of(costs, 4, 2, 8)
    assert times.plain == pytest.approx(3.08, rel=0.01)
    assert times.drafted == pytest.approx(3.08 + 0.24 + 0.024 + 0.4, rel=0.01)
