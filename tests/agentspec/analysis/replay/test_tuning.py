"""Fitting estimates to recorded outputs, on texts whose probabilities are known."""

from __future__ import annotations

import numpy as np
import pytest
from engine_texts import by_counts
from every import every
from numpy.typing import NDArray

from agentspec import ConfigError, EngineConfig, Estimates, Trials, _core
from agentspec.analysis.replay import Call
from agentspec.analysis.replay.teacher_forcing import calibration_error
from agentspec.analysis.replay.tuning import collect_trials, fit, measure

pytest.importorskip("scipy", reason="`make setup` installs scipy")


def calls(number: int, seed: int) -> list[Call]:
    """Outputs that repeat one phrase: 1 2, then 4 in half of the cases and otherwise one of 5 to 8."""
    rng = np.random.default_rng(seed)
    made = []
    for call in range(number):
        phrases = [[1, 2, 4 if rng.random() < 0.5 else int(rng.integers(5, 9))] for _ in range(10)]
        output = np.array([token for phrase in phrases for token in phrase], np.int32)
        made.append(Call(f"{call}", "", "", (np.array([9], np.int32),), output))
    return made


def wrong() -> Estimates:
    """Estimates that call every continuation unlikely, however often it was seen."""
    weights = np.zeros(_core.NUM_WEIGHTS, np.float32)
    weights[: _core.NUM_BIASES] = -3.0
    return Estimates(weights, "wrong")


def logits(trials: Trials, estimates: Estimates) -> NDArray[np.float64]:
    """The estimator's formula: a context interpolates between two neighbouring weights, and the bias is one weight."""
    w = estimates.weights.astype(np.float64)
    below, fraction = trials.weights, trials.fractions
    values = (1.0 - fraction) * w[below] + fraction * w[np.minimum(below + 1, len(w) - 1)]
    return np.asarray(np.where(below >= 0, values, 0.0).sum(axis=1))


def loss(trials: Trials, estimates: Estimates) -> float:
    """Mean cross entropy of the observed outcomes, in nats."""
    z = logits(trials, estimates)
    return float(np.mean(np.logaddexp(0.0, z) - trials.accepted * z))


# Trials -----------------------------------------------------------------------------------------------------------


def test_estimates_of_trials_are_those_of_the_weights_on_a_draft_s_first_tokens() -> None:
    """The estimate of a path is the product of its nodes' probabilities; for one node it is the probability."""
    weights = by_counts().weights.copy()
    weights[: _core.NUM_BIASES] = -2.0  # so low that siblings' probabilities never add up to more than 1
    start = Estimates(weights)
    trials = collect_trials(calls(3, seed=1), start, max_draft_tokens=1)
    expected = 1.0 / (1.0 + np.exp(-logits(trials, start)))
    np.testing.assert_allclose(trials.estimates, expected, rtol=2e-3, atol=1e-5)


def test_nothing_to_fit_on_is_refused() -> None:
    once = Call("a", "", "", (np.array([9], np.int32),), np.array([1], np.int32))
    new = Call("b", "", "", (np.array([9], np.int32),), np.arange(20, 40, dtype=np.int32))
    for given in ([once], [new], [once, new]):
        with pytest.raises(ConfigError, match="there is nothing to fit on"):
            collect_trials(given, by_counts())


# Fitting ----------------------------------------------------------------------------------------------------------


def test_fitting_lowers_the_loss_and_keeps_what_no_trial_touched() -> None:
    start, trials = wrong(), collect_trials(calls(20, seed=1), wrong())
    fitted = fit([trials], start, "by a test")
    other = collect_trials(calls(20, seed=2), wrong())
    assert loss(trials, fitted) < 0.3 * loss(trials, start)
    assert loss(other, fitted) < 0.3 * loss(other, start), "on texts it was not fitted to, too"
    assert fitted.note == "by a test"
    # No trial used these functions.
    used = np.unique(trials.weights[trials.weights >= _core.NUM_BIASES] - _core.NUM_BIASES) // _core.NUM_KNOTS
    functions = fitted.weights[_core.NUM_BIASES :].reshape(-1, _core.NUM_KNOTS)
    unused = np.setdiff1d(np.arange(len(functions)), used)
    np.testing.assert_allclose(functions[unused], 0.0, atol=1e-6)
    assert np.abs(functions[used]).max() > 0.1


def test_fitting_calibrates_wrong_estimates() -> None:
    """Fitting is repeated, since a path's estimate chooses the weights of the continuations after it."""
    estimates, errors, held_out = wrong(), [], calls(10, seed=3)
    for _ in range(4):
        config = EngineConfig(max_draft_tokens=4, learning_rate=0.0, min_token_prob=0.0, estimates=estimates)
        sums = measure(held_out, config)
        errors.append(calibration_error(sums.estimated, sums.came_true))
        estimates = fit([collect_trials(calls(30, seed=1), estimates)], estimates, "")
    assert errors == sorted(errors, reverse=True), errors
    assert errors[1] < 0.7 * errors[0]
    assert errors[-1] < 0.3 * errors[0]


def test_each_set_counts_alike_however_large() -> None:
    """In one set 4 always follows. In another set, with ten times as many trials, it never does."""
    places = [np.full((n, 9), -1, np.int32) for n in (50, 500)]
    for place in places:
        place[:, -1] = 0
    sets = [
        Trials(place, np.zeros(place.shape, np.float32), np.ones(len(place), np.float32), accepted)
        for place, accepted in zip(places, (np.ones(50, np.uint8), np.zeros(500, np.uint8)), strict=True)
    ]
    fitted = fit(sets, Estimates(np.zeros(_core.NUM_WEIGHTS, np.float32)), "")
    assert fitted.weights[0] == pytest.approx(0.0, abs=0.02)
    assert fit(sets[1:], Estimates(np.zeros(_core.NUM_WEIGHTS, np.float32)), "").weights[0] < -2


# Measuring --------------------------------------------------------------------------------------------------------


def test_steps_and_accepted_tokens_make_up_the_outputs() -> None:
    given = calls(3, seed=7)
    sums = measure(given, EngineConfig(max_draft_tokens=4, estimates=by_counts()))
    # The first token of each output comes from the prefill. Each step adds one token to those it accepts.
    assert sums.steps + sums.accepted == sum(len(call.output) - 1 for call in given)
    assert sums.accepted <= sums.drafted <= 4 * sums.steps


def test_outputs_of_one_token_cannot_be_measured() -> None:
    call = Call("a", "", "", (np.array([9], np.int32),), np.array([1], np.int32))
    with pytest.raises(ConfigError, match="there is no step to measure"):
        measure([call], EngineConfig())


@every(
    ("estimated", "came_true", "expected"),
    [
        ([], [], 0.0),
        ([1.0, 1.0], [True, True], 0.0),
        ([0.05, 0.05], [True, False], 0.45),
        # Bin [0.2, 0.3) has estimates of 0.5 in all and one true token; bin [0.9, 1] has 0.95 and none.
        ([0.2, 0.3 - 1e-6, 0.95], [True, False, False], (0.5 + 0.95) / 3),
        # Errors cancel out within a bin, but not between two bins.
        ([0.41, 0.49], [True, False], (0.9 - 1.0) / -2),
        ([0.45, 0.55], [True, False], 0.55),
    ],
)
def test_calibration_error_by_hand(estimated: list[float], came_true: list[bool], expected: float) -> None:
    error = calibration_error(np.array(estimated, np.float32), np.array(came_true, np.bool_))
    assert error == pytest.approx(expected, abs=1e-5)
