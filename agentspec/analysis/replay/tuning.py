"""Fits an engine's estimates of acceptance to recorded calls (SSSD, section 3.1.3).

    calls ─> replay, noting weighed continuations and the next tokens ─> trials ─> logistic regression ─> estimates

Each row of the regression is a continuation that the drafter weighed along a recorded output: the log odds of its
contexts, and whether it was the output's next token. The fitted estimates are calibrated probabilities by source,
length of match, depth, counts and age. The paper instead scales probabilities by weights from a grid search. Here only
the least probability of a drafted token comes from a grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec.analysis.replay.engine_system import ID, Corpora, EngineSystem, engine_with, steps_of
from agentspec.analysis.replay.teacher_forcing import Measurement, replay
from agentspec.analysis.replay.traces import Call
from agentspec.config import EngineConfig
from agentspec.engine import Trials
from agentspec.errors import ConfigError
from agentspec.estimates import NUM_WEIGHTS, Estimates

_SHRINK = 5.0
"""Penalty on the square of a weight's change, in trials. Weights that few trials touch hardly change."""
_SMOOTH = 1.0
"""Penalty on the square of the difference of two neighbours' changes, in trials."""
_MAX_ROUNDS = 150


def _nothing(number: int) -> None:
    """Ignores progress."""


def collect_trials(
    calls: Sequence[Call],
    estimates: Estimates,
    *,
    max_draft_tokens: int = 32,
    corpora: Corpora | None = None,
    on_call: Callable[[int], object] = _nothing,
) -> Trials:
    """Replays calls on an engine that has learnt nothing, and returns all weighed continuations with their estimates.
    With corpora, they also show how far continuations from these come true. Raises ConfigError if nothing was
    weighed: the outputs are too short, or nothing in them occurred before."""
    config = EngineConfig(max_draft_tokens=max_draft_tokens, estimates=estimates, learning_rate=0.0)
    engine = engine_with(config, corpora)
    rows: list[Trials] = []
    for number, call in enumerate(calls, 1):
        for done in steps_of(engine, call):
            rows.append(engine.trials(ID, call.output[done : done + max_draft_tokens]))
        on_call(number)
    if not any(len(row.accepted) for row in rows):
        raise ConfigError(
            "there is nothing to fit on: no output continues what was said before; pass traces that repeat themselves"
        )
    return Trials(
        weights=np.concatenate([row.weights for row in rows]),
        fractions=np.concatenate([row.fractions for row in rows]),
        estimates=np.concatenate([row.estimates for row in rows]),
        accepted=np.concatenate([row.accepted for row in rows]),
    )


def check_scipy() -> None:
    """Raises ConfigError if scipy, which fit() needs, is not installed."""
    try:
        import scipy.optimize
        import scipy.sparse  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"fitting needs the package scipy: {error}; `pip install 'sglang-agentspec[tune]'`"
        ) from error


def fit(trial_sets: Sequence[Trials], start: Estimates, note: str) -> Estimates:
    """Fits the estimates near `start` that make the trials most likely. All sets have the same weight. Raises
    ConfigError if the package scipy is not installed."""
    check_scipy()
    from scipy.optimize import minimize
    from scipy.sparse import csr_matrix, vstack

    total = sum(len(trials.accepted) for trials in trial_sets)
    design = vstack([_design(trials, csr_matrix) for trials in trial_sets]).tocsr()
    transposed = design.T.tocsr()
    accepted = np.concatenate([trials.accepted for trials in trial_sets]).astype(np.float64)
    row_weights = np.concatenate(
        [np.full(len(t.accepted), total / len(trial_sets) / len(t.accepted)) for t in trial_sets]
    )
    lower = _smoothed_weights()
    before = start.weights.astype(np.float64)

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logits = design @ weights
        value = float(np.sum(row_weights * (np.logaddexp(0.0, logits) - accepted * logits)))
        gradient = transposed @ (row_weights * (1.0 / (1.0 + np.exp(-logits)) - accepted))
        change = weights - before
        steps = change[lower + 1] - change[lower]
        value += _SHRINK / 2 * float(change @ change) + _SMOOTH / 2 * float(steps @ steps)
        gradient += _SHRINK * change
        gradient[lower + 1] += _SMOOTH * steps
        gradient[lower] -= _SMOOTH * steps
        return value, gradient

    result = minimize(loss, before, jac=True, method="L-BFGS-B", options={"maxiter": _MAX_ROUNDS, "maxcor": 20})
    return Estimates(np.asarray(result.x, dtype=np.float32), note)


def measure(
    calls: Sequence[Call],
    config: EngineConfig,
    *,
    warm: Iterable[Call] = (),
    corpora: Corpora | None = None,
) -> Measurement:
    """Replays calls after those of `warm` were learnt. Raises ConfigError if every output has one token only."""
    system = EngineSystem.on(engine_with(config, corpora))
    for call in warm:
        system.remember(call)
    sums = replay(calls, system, config.max_draft_tokens)
    if not sums.steps:
        raise ConfigError("there is no step to measure: every output has one token only; pass other traces")
    return sums


def _design(trials: Trials, csr_matrix: Any) -> Any:
    """The design matrix, rows by weights. Each context counts for two neighbouring weights."""
    present = trials.weights >= 0
    rows = np.broadcast_to(np.arange(len(present))[:, None], present.shape)[present]
    columns, fractions = trials.weights[present], trials.fractions[present]
    values = np.concatenate([1.0 - fractions, fractions])
    places = (np.concatenate([rows, rows]), np.concatenate([columns, np.minimum(columns + 1, NUM_WEIGHTS - 1)]))
    return csr_matrix((values, places), shape=(len(present), NUM_WEIGHTS))


def _smoothed_weights() -> NDArray[np.int64]:
    """The indexes of weights whose next weight belongs to the same function."""
    functions = np.arange(_core.NUM_BIASES, NUM_WEIGHTS - 1, dtype=np.int64)
    chosen: NDArray[np.int64] = functions[(functions - _core.NUM_BIASES) % _core.NUM_KNOTS != _core.NUM_KNOTS - 1]
    return chosen
