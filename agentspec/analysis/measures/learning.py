"""The accept length by the number of outputs learnt, and its extrapolation beyond the sample.

The sessions are served in random order by a server that has learnt nothing, so each output is measured after those
before it were learnt. The last point is that of the server that has learnt the other sessions. The points are of different
outputs, and some outputs are long copies of their prompts whatever was learnt. A point is therefore the steps that its
outputs take with nothing learnt, divided by the steps that they took, times the accept length of all outputs with
nothing learnt. The number of accepted tokens per step is close to a power of the number of outputs n,

    accept length(n) = 1 + a * (n + 1) ** b

which is fitted to the points. A prior pulls b towards the values of recorded agents and chats; it matters most where
points are few. No curve predicts texts of another kind.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.measures.intervals import NORMAL, Ratio, ratio
from agentspec.analysis.measures.replays import Lengths, Sampled

_FIRST = 3
"""Points of fewer outputs, or of outputs within a first session, are not fitted: they depend on what comes first."""
_USUAL_EXPONENT, _EXPONENT_SPREAD = 0.16, 0.15
"""The prior of the exponent b, from recorded sets: its mean and its standard deviation; see evals/results/report."""
_POINT_SPREAD = 0.06
"""The least relative error of a measured point."""
_LEAST_OUTPUTS = 6
_LEAST_ACCEPTED = 0.01


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The accept length of servers that had learnt about `outputs` outputs."""

    outputs: int
    accept_length: float
    low: float
    """The interval of the accept length. Points share a part of it, because they are of the same outputs."""
    high: float
    spread: float
    """The relative error of the point against the other points, as a standard deviation."""

    def facts(self) -> dict[str, Any]:
        return {"outputs": self.outputs, "accept_length": self.accept_length, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class Growth:
    """A fitted curve and its error, in standard deviations of the logarithm of accepted tokens."""

    log_scale: float
    exponent: float
    level_spread: float = 0.0
    """The error of the whole curve: other outputs of the same kind have another level."""
    exponent_spread: float = 0.0
    middle: float = 0.0
    """The log(outputs + 1) around which an error of the exponent turns the curve."""

    def accept_length(self, seen: NDArray[np.float64] | float, deviations: float = 0.0) -> NDArray[np.float64]:
        """The accept length after `seen` outputs, on the curve that is `deviations` standard deviations away."""
        x = np.log(np.asarray(seen, np.float64) + 1.0)
        spread = np.hypot(self.level_spread, self.exponent_spread * (x - self.middle))
        lengths: NDArray[np.float64] = 1.0 + np.exp(self.log_scale + self.exponent * x + deviations * spread)
        return lengths


def curve_points(cold: Lengths, warm: Lengths, alone: Lengths, sampled: Sampled) -> list[CurvePoint]:
    """The points of the curve, ascending: several of cold passes, one of warm passes. For `alone` see serve_alone()."""
    level = alone.ratio(sampled)
    if level is None:
        return []
    points = []
    edges = [0, *(3 * 2**i for i in range(20))]
    for first, end in itertools.pairwise(edges):
        inside = (cold.seen >= first) & (cold.seen < end)
        points += _point(cold.chosen(inside), alone, level, sampled)
    points += _point(warm, alone, level, sampled)
    return list({point.outputs: point for point in sorted(points, key=lambda point: point.outputs)}.values())


def fit_growth(points: Sequence[CurvePoint], first: int = _FIRST) -> Growth | None:
    """The curve through points of at least `first` outputs; None if there are fewer than two."""
    used = [point for point in points if point.outputs >= max(first, _FIRST)] or list(points[-2:])
    if len(used) < 2:
        return None
    x = np.log([point.outputs + 1.0 for point in used])
    lengths = np.array([point.accept_length for point in used])
    accepted = np.maximum(lengths - 1.0, _LEAST_ACCEPTED)
    y = np.log(accepted)
    # Weights of the logarithms of accepted tokens, without the bonus token.
    weights = 1.0 / ((np.array([point.spread for point in used]) ** 2 + _POINT_SPREAD**2) * (lengths / accepted) ** 2)
    # Least squares with a prior on the exponent.
    mean_x, mean_y = np.average(x, weights=weights), np.average(y, weights=weights)
    precision = 1.0 / _EXPONENT_SPREAD**2
    above = (weights * (x - mean_x) * (y - mean_y)).sum() + precision * _USUAL_EXPONENT
    exponent = float(np.clip(above / ((weights * (x - mean_x) ** 2).sum() + precision), 0.0, 0.5))
    # The standard deviation of a logarithm is that of its 90 % interval.
    shared = np.array([math.log(point.high / point.low) / (2 * NORMAL) for point in used]) * lengths / accepted
    return Growth(
        float(mean_y - exponent * mean_x),
        exponent,
        level_spread=float(shared.mean()),
        exponent_spread=float(1.0 / np.sqrt((weights * (x - mean_x) ** 2).sum() + precision)),
        middle=float(mean_x),
    )


def first_of(sampled: Sampled) -> int:
    """The number of outputs of the longest session: fewer outputs may all be of one session."""
    return max(Counter(call.session for call in sampled.outputs).values(), default=0)


def _point(lengths: Lengths, alone: Lengths, level: Ratio, sampled: Sampled) -> list[CurvePoint]:
    if len(lengths.seen) < _LEAST_OUTPUTS:
        return []
    steps_alone = np.zeros(len(sampled.measured))
    steps_alone[alone.calls] = alone.steps
    sessions = [sampled.measured[i].session for i in lengths.calls]
    gain = ratio(steps_alone[lengths.calls], lengths.steps, sessions)
    if gain is None:
        return []
    mean = level.value * gain.value
    errors = math.hypot(level.error, gain.error), math.hypot(level.next_error, gain.next_error)
    whole = Ratio(mean, *errors, min(level.freedom, gain.freedom)).interval()
    return [
        CurvePoint(
            outputs=round(float(lengths.seen.mean())),
            accept_length=whole["mean"],
            low=max(whole["low"], round(min(mean, 1.0), 4)),
            high=whole["high"],
            spread=gain.error,
        )
    ]
