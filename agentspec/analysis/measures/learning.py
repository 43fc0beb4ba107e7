"""The accept length by the number of outputs learnt.

The sessions are served in random order by a server that has learnt nothing, so each output is measured after those
before it were learnt. The last point is that of the server that has learnt the other sessions. The points are of different
outputs, and some outputs are long copies of their prompts whatever was learnt. A point is therefore the steps that its
outputs take with nothing learnt, divided by the steps that they took, times the accept length of all outputs with
nothing learnt.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from agentspec.analysis.measures.intervals import Ratio, ratio
from agentspec.analysis.measures.replays import Lengths, Sampled

_LEAST_OUTPUTS = 6


def curve_points(cold: Lengths, warm: Lengths, alone: Lengths, sampled: Sampled) -> list[dict[str, Any]]:
    """The points of the curve, ascending: several of cold passes, one of warm passes. For `alone` see serve_alone().
    The intervals of points share a part, because the points are of the same outputs."""
    level = alone.ratio(sampled)
    if level is None:
        return []
    points = []
    edges = [0, *(3 * 2**i for i in range(20))]
    for first, end in itertools.pairwise(edges):
        inside = (cold.seen >= first) & (cold.seen < end)
        points += _point(cold.chosen(inside), alone, level, sampled)
    points += _point(warm, alone, level, sampled)
    return list({point["outputs"]: point for point in sorted(points, key=lambda point: point["outputs"])}.values())


def _point(lengths: Lengths, alone: Lengths, level: Ratio, sampled: Sampled) -> list[dict[str, Any]]:
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
        {
            "outputs": round(float(lengths.seen.mean())),
            "accept_length": whole["mean"],
            "low": max(whole["low"], round(min(mean, 1.0), 4)),
            "high": whole["high"],
        }
    ]
