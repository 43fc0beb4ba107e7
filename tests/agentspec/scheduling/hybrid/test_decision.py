"""Whether the draft model's passes pay by the formula of goodput, and which threshold tau follows from it."""

from __future__ import annotations

import numpy as np
import pytest
from every import every

from agentspec.errors import ConfigError
from agentspec.scheduling.hybrid import StepCosts
from agentspec.scheduling.hybrid.decision import Promises, StepTimes


@every("seed", range(100))
def test_the_passes_save_time_where_they_raise_goodput(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = int(rng.integers(1, 7))
    suffix, model = rng.exponential(1.5, b), rng.exponential(1.5, b)
    fit = rng.random(b) < 0.8
    times = StepTimes(plain=1.0, drafted=1.0 + 0.6 * rng.random())
    margin = float(rng.choice([0.0, 0.3]))
    # The formula in the docstring of Promises, term by term.
    with_model = sum(1 + (max(suffix[i], (1 + model[i]) / (1 + margin) - 1) if fit[i] else suffix[i]) for i in range(b))
    alone = sum(1 + suffix[i] for i in range(b))
    nodes = rng.integers(1, 5, b)
    promises = Promises.of(np.append(0, np.cumsum(nodes)).astype(np.int32), suffix, model, fit, margin)
    saved = promises.saved(times, promises.gained_fit)
    assert (saved > 0) == (with_model / times.drafted > alone / times.plain)
    assert saved == pytest.approx(with_model / (alone / times.plain) - times.drafted)
    everything = Promises.of(np.arange(b + 1, dtype=np.int32), suffix, model, np.ones(b, np.bool_), margin)
    assert promises.gained == everything.gained == everything.gained_fit >= promises.gained_fit
    assert promises.better == pytest.approx(np.where(fit, np.maximum(suffix, model), suffix).sum())
    assert promises.model_fit == pytest.approx(model[fit].sum())
    assert (promises.rows, promises.num_fit, promises.widest) == (b, fit.sum(), nodes.max())
    assert promises.is_idle == bool((fit & (nodes == 1)).any())


def test_promises_are_of_the_same_rows() -> None:
    two = np.ones(2)
    with pytest.raises(ConfigError, match="same rows"):
        Promises.of(np.arange(3, dtype=np.int32), two, np.ones(1), np.ones(2, np.bool_), 0.0)


def test_of_one_row_the_choice_is_tau() -> None:
    times = StepTimes(plain=1.0, drafted=1.25)
    tau = times.break_even(3.0, margin=0.0)
    assert tau == pytest.approx(4 / 1.25 - 1)
    one = np.ones(1, np.bool_)
    for suffix, worth in ((tau - 1e-9, True), (tau + 1e-9, False)):
        promises = Promises.of(np.array([0, 2], np.int32), np.array([suffix]), np.array([3.0]), one, 0.0)
        assert (promises.saved(times, promises.gained_fit) > 0) == worth
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
