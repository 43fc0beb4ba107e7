"""Trains a payoff predictor on recorded calls, without inference, as Hybrid Verified Decoding does.

calls ─> replay ─> features and number of accepted tokens of each suffix draft ─> least squares
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay.engine_system import remember
from agentspec.analysis.replay.traces import Call
from agentspec.analysis.replay.tuning import check_scipy, steps_of
from agentspec.config import EngineConfig
from agentspec.engine import Engine
from agentspec.errors import ConfigError
from agentspec.scheduling.baselines.payoff import FEATURES, PayoffPredictor, row_features
from agentspec.scheduling.hybrid.accepted_lengths import AcceptedLengths

_UNITS = 16
_DECAY = 1e-4
"""Penalty on the square of a weight, in squared tokens of the mean error."""
_MAX_ROUNDS = 500


def _nothing(number: int) -> None:
    """Ignores progress."""


@dataclass(frozen=True, slots=True, eq=False)
class Payoffs:
    """The features and results of n suffix drafts."""

    features: NDArray[np.float64]
    """[n, f], see FEATURES in agentspec/scheduling/baselines/payoff.py."""
    scores: NDArray[np.float64]
    """[n], the number of accepted tokens that the estimates predict."""
    accepted: NDArray[np.float64]
    """[n], the number of accepted tokens."""


@dataclass(frozen=True, slots=True)
class PayoffErrors:
    """The errors of predictions and of the scores that they replace, against the number of accepted tokens."""

    drafts: int
    accepted_per_draft: float
    rmse: float
    """Root of the mean squared error of the predictor, in tokens."""
    score_rmse: float
    mae: float
    """Mean absolute error of the predictor, in tokens."""
    score_mae: float


def collect_payoffs(
    calls: Sequence[Call],
    config: EngineConfig,
    *,
    warm: Iterable[Call] = (),
    on_call: Callable[[int], object] = _nothing,
) -> Payoffs:
    """Replays calls after those of `warm` were learnt, and returns every draft that has a token.

    Raises:
        ConfigError: Nothing was drafted.
    """
    engine = Engine(config)
    for call in warm:
        remember(engine, call)
    running = AcceptedLengths(0.0)
    features, scores, accepted = [], [], []
    for number, call in enumerate(calls, 1):
        for row, true_nodes, _ in steps_of(engine, call):
            running.next_step()
            if len(row.tokens) == 1:
                continue
            features.append(row_features(row, running.expected("call")))
            scores.append(row.score)
            accepted.append(float(true_nodes.sum()) - 1.0)
            running.observe("call", accepted[-1])
        running.forget("call")
        on_call(number)
    if not features:
        raise ConfigError("nothing was drafted: no output continues what was said before; pass traces that repeat")
    return Payoffs(np.array(features), np.array(scores), np.array(accepted))


def fit_payoff(sets: Sequence[Payoffs], note: str, *, seed: int = 0) -> PayoffPredictor:
    """Fits a network by least squares. All sets have the same weight, whatever their size.

    Raises:
        ConfigError: The package scipy is not installed.
    """
    check_scipy()
    from scipy.optimize import minimize

    x = np.concatenate([payoffs.features for payoffs in sets])
    y = np.concatenate([payoffs.accepted for payoffs in sets])
    row_weights = np.concatenate([np.full(len(p.accepted), 1.0 / len(sets) / len(p.accepted)) for p in sets])
    mean = row_weights @ x
    scale = np.sqrt(row_weights @ (x - mean) ** 2)
    scale[scale < 1e-6] = 1.0
    z = (x - mean) / scale
    rng = np.random.default_rng(seed)
    cuts = np.cumsum([len(FEATURES) * _UNITS, _UNITS, _UNITS])
    start = np.concatenate([rng.normal(0, 0.4, cuts[0]), np.zeros(_UNITS), np.zeros(_UNITS), [row_weights @ y]])

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        hidden_weights, hidden_bias, output, bias = np.split(weights, cuts)
        hidden_weights = hidden_weights.reshape(len(FEATURES), _UNITS)
        hidden = np.tanh(z @ hidden_weights + hidden_bias)
        errors = hidden @ output + bias - y
        value = float(row_weights @ errors**2) + _DECAY * float(weights[:-1] @ weights[:-1])
        by_prediction = 2.0 * row_weights * errors
        by_hidden = np.outer(by_prediction, output) * (1.0 - hidden**2)
        gradient = np.concatenate(
            [(z.T @ by_hidden).ravel(), by_hidden.sum(axis=0), hidden.T @ by_prediction, [by_prediction.sum()]]
        )
        gradient[:-1] += 2.0 * _DECAY * weights[:-1]
        return value, gradient

    result = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _MAX_ROUNDS, "maxcor": 20})
    hidden_weights, hidden_bias, output, bias = np.split(np.asarray(result.x, np.float64), cuts)
    return PayoffPredictor(
        mean=mean,
        scale=scale,
        hidden=hidden_weights.reshape(len(FEATURES), _UNITS),
        hidden_bias=hidden_bias,
        output=output,
        output_bias=float(bias[0]),
        note=note,
    )


def payoff_errors(predictor: PayoffPredictor, payoffs: Payoffs) -> PayoffErrors:
    """The predictor's errors on drafts, which should not be those that it was fitted on."""
    errors = predictor.predict(payoffs.features) - payoffs.accepted
    score_errors = payoffs.scores - payoffs.accepted
    return PayoffErrors(
        drafts=len(payoffs.accepted),
        accepted_per_draft=round(float(payoffs.accepted.mean()), 4),
        rmse=round(float(np.sqrt(np.mean(errors**2))), 4),
        score_rmse=round(float(np.sqrt(np.mean(score_errors**2))), 4),
        mae=round(float(np.mean(np.abs(errors))), 4),
        score_mae=round(float(np.mean(np.abs(score_errors))), 4),
    )
