"""The accept length against the number of outputs learnt, and what it becomes beyond the sample.

Served in random order from nothing, each output is measured with those before it learnt; larger numbers are measured
after parts of the other outputs were learnt. Accepted tokens a step are close to a power of the number of outputs n,

    accept length(n) = 1 + a * (n + 1) ** b

fitted to the measured points; b is drawn towards what recorded agents and chats showed, the more the fewer points
there are. No curve says what texts of another kind will bring.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.config import EngineConfig
from agentspec.engine import Engine
from agentspec.report.replays import Lengths, Sampled, learn, serve

_FIRST = 6
"""Points of fewer outputs learnt are not fitted to: they hang on what comes first."""
_USUAL_EXPONENT, _EXPONENT_SPREAD = 0.16, 0.08
"""Of the exponents b found on recorded sets: mean and standard deviation; see evals/results/report."""
_POINT_SPREAD = 0.06
"""What a measured point is off by at least, as a share."""
INTERVAL = 1.645
"""Standard deviations on either side that hold 90 %."""
_LEAST_OUTPUTS = 6
_LEAST_ACCEPTED = 0.01


@dataclass(frozen=True, slots=True)
class Growth:
    """A fitted curve, and how far off it may be, in standard deviations of the logarithm of accepted tokens."""

    log_scale: float
    exponent: float
    level_spread: float = 0.0
    """Of all of the curve: other outputs of the same kind have another level."""
    exponent_spread: float = 0.0
    middle: float = 0.0
    """log(outputs + 1) around which the curve turns if the exponent is off."""

    def accept_length(self, seen: NDArray[np.float64] | float, deviations: float = 0.0) -> NDArray[np.float64]:
        """At so many outputs learnt; of the curve that lies so many standard deviations away."""
        x = np.log(np.asarray(seen, np.float64) + 1.0)
        spread = np.hypot(self.level_spread, self.exponent_spread * (x - self.middle))
        lengths: NDArray[np.float64] = 1.0 + np.exp(self.log_scale + self.exponent * x + deviations * spread)
        return lengths

    def over(self, first: int, last: int, deviations: float = 0.0) -> float:
        """Of serving outputs one after another, from the number `first` learnt to `last`: steps add up, so that it is
        the harmonic mean."""
        edges = np.unique(np.geomspace(first + 1, last + 1, 200)) - 1.0
        middles, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
        if not len(widths):
            return float(self.accept_length(float(first), deviations))
        return float(widths.sum() / (widths / self.accept_length(middles, deviations)).sum())


def later_points(
    sampled: Sampled, config: EngineConfig, seed: int, on_pass: Callable[[], object] = lambda: None
) -> list[Lengths]:
    """Serves the measured calls after parts of other sessions' outputs were learnt, each part four times the last."""
    measured = {call.session for call in sampled.measured}
    by_session: dict[str, list[int]] = {}
    for i, call in enumerate(sampled.outputs):
        if call.session not in measured:
            by_session.setdefault(call.session, []).append(i)
    sessions = list(by_session.values())
    order = np.random.default_rng([seed, 99]).permutation(len(sessions))
    outputs = [sampled.outputs[i] for place in order for i in sessions[place]]
    indexes = np.arange(len(sampled.measured))
    passes = []
    size = 2 * len(sampled.measured)
    while size < len(outputs):
        engine = Engine(config)
        learn(engine, outputs[:size])
        passes.append(serve(engine, sampled.measured, indexes, size))
        on_pass()
        size *= 4
    return passes


def curve_points(
    cold: Lengths, later: Sequence[Lengths], warm: Lengths, sampled: Sampled, seed: int
) -> list[dict[str, Any]]:
    """Points of the curve, ascending: outputs, accept_length, low and high; one of each pass but for the cold ones."""
    points = []
    edges = [0, *(3 * 2**i for i in range(12))]
    for first, end in itertools.pairwise(edges):
        inside = (cold.seen >= first) & (cold.seen < end)
        points += _point(cold.chosen(inside), sampled, seed)
    for lengths in (*later, warm):
        points += _point(lengths, sampled, seed)
    merged: dict[int, dict[str, Any]] = {}
    for point in sorted(points, key=lambda point: point["outputs"]):
        merged[point["outputs"]] = point
    return list(merged.values())


def fit_growth(points: Sequence[dict[str, Any]]) -> Growth | None:
    """The curve through measured points; None if there are fewer than two of enough outputs."""
    used = [point for point in points if point["outputs"] >= _FIRST] or list(points[-2:])
    if len(used) < 2:
        return None
    x = np.log([point["outputs"] + 1.0 for point in used])
    lengths = np.array([point["accept_length"] for point in used])
    accepted = np.maximum(lengths - 1.0, _LEAST_ACCEPTED)
    y = np.log(accepted)
    intervals = np.array([math.log(max(point["high"], 1.0) / max(point["low"], 1.0)) for point in used])
    # An interval of 90 % is 3.3 standard deviations wide; of logarithms of accepted tokens, without the bonus.
    weights = 1.0 / (((intervals / 3.3) ** 2 + _POINT_SPREAD**2) * (lengths / accepted) ** 2)
    # Least squares with a prior on the exponent.
    mean_x, mean_y = np.average(x, weights=weights), np.average(y, weights=weights)
    precision = 1.0 / _EXPONENT_SPREAD**2
    above = (weights * (x - mean_x) * (y - mean_y)).sum() + precision * _USUAL_EXPONENT
    exponent = float(np.clip(above / ((weights * (x - mean_x) ** 2).sum() + precision), 0.0, 0.5))
    return Growth(
        float(mean_y - exponent * mean_x),
        exponent,
        # All points are of the same outputs, so that more of them do not make the level surer.
        level_spread=float(np.sqrt(np.average(1.0 / weights, weights=weights))),
        exponent_spread=float(1.0 / np.sqrt((weights * (x - mean_x) ** 2).sum() + precision)),
        middle=float(mean_x),
    )


def _point(lengths: Lengths, sampled: Sampled, seed: int) -> list[dict[str, Any]]:
    interval = lengths.interval(sampled, seed) if len(lengths.seen) >= _LEAST_OUTPUTS else None
    if interval is None:
        return []
    return [
        {
            "outputs": round(float(lengths.seen.mean())),
            "accept_length": interval["mean"],
            "low": interval["low"],
            "high": interval["high"],
        }
    ]
