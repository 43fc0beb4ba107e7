"""Seconds of a step by the number of its tokens, as the steps themselves show them.

seconds
   |            /       A GPU reads its weights in the same time for one token as for a hundred. From where arithmetic
   |          /         takes longer than reading, each further token costs. A line through all of it predicts badly. So
   | --------'          the curve keeps a point for every number of tokens that steps had, and bridges the gaps.
   +------------- tokens
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from agentspec.scheduling.costs.context_cost import KNOTS, places
from agentspec.scheduling.costs.cost_model import StepCost

_MEMORY = 12.0
"""Number of steps over which a point averages."""
_KEPT = 0.9985
"""What a step counts in the weight of a point, one step later. A point that steps have not visited for long is forgotten, so
that it is found out again whether it still holds."""
_LEAST_WEIGHT = 0.05
"""A point of less weight is forgotten."""
_UNTRIED = 0.25
"""What a further token costs at most, in tokens of the only point that is known."""
_TRUSTED = 4
"""A point is believed in part only until it has learned from this number of steps; see _believed()."""
_LEFT = 0.2
"""The least share of a point's seconds that is left at shorter contexts, whatever alpha says."""
_FARTHEST = 0.3
"""A step moves the curve as if it were at most this share away from it: a step that waited for something else tells
nothing."""
_COMMON = 0.85
"""The share of a point's move that is taken for one of the whole curve."""


class StepCurve:
    """Learns from steps one by one. Where it knows nothing, it follows a given linear cost.

    A step waits for at(), and observe() comes while the device works. So observe() prepares what at() reads.
    """

    def __init__(self) -> None:
        number = len(KNOTS)
        self._seconds = [0.0] * number
        self._contexts = [0.0] * number
        """The context of the step that a point was last moved to, in tokens."""
        self._weights = [0.0] * number
        self._shown = [0] * number
        """Number of steps that a point has learned from since it was last forgotten."""
        self._visited = [0] * number
        """Number of the latest step that a point has learned from."""
        self._known_until = [-1.0] * number
        """Number of the step up to which a point is known; later it is forgotten, unless a step visits it again."""
        self._num_steps = 0
        self._slower = 1.0
        """By what factor steps seem to be slower than without other work on the device."""
        self._known: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]] | None = None
        """Tokens, seconds and contexts of the known points; None: there are none."""

    def at(self, batched: NDArray[np.float64], context: float, linear: StepCost) -> NDArray[np.float64]:
        """Predicted seconds of steps of these numbers of tokens, float64[n]. Where the curve knows nothing it follows
        the linear cost, whose alpha counts everywhere."""
        if self._known is None:
            found: NDArray[np.float64] = linear.gamma * batched + (linear.alpha * context + linear.delta)
            return found
        tokens, seconds, contexts = self._known
        seconds = np.maximum(seconds + linear.alpha * (context - contexts), _LEFT * seconds)
        # More tokens never take less time. So a point that a slow step has lifted sinks to those after it.
        seconds = np.minimum.accumulate(seconds[::-1])[::-1]
        # Beyond the last point each token costs as between the last two, or what the linear cost says if that is more. A
        # line through steps that hardly differ says little, so it counts no more than what a token of the last point took.
        # A single point says nothing of further tokens. They are taken to cost little, so that they are tried.
        mean = float(seconds[-1] / tokens[-1])
        if len(tokens) > 1:
            slope = max(min(linear.gamma, mean), float((seconds[-1] - seconds[-2]) / (tokens[-1] - tokens[-2])))
        else:
            slope = min(linear.gamma, _UNTRIED * mean)
        # Below the first point it would be no surprise if fewer tokens took less.
        outside = linear.gamma * np.minimum(batched - tokens[0], 0.0) + slope * np.maximum(batched - tokens[-1], 0.0)
        inside: NDArray[np.float64] = np.interp(batched, tokens, seconds) + outside
        return np.maximum(inside, max(0.1 * float(seconds[0]), 0.0), out=inside)

    def observe(self, batched: float, context: float, seconds: float, linear: StepCost) -> None:
        """Learns from a step of `batched` tokens that took `seconds`."""
        points = places(batched)
        ages = [self._weight(knot) for knot, _ in points]
        # A point begins where the curve is. Later it goes its own way: the curve may believe it in part only.
        before = [
            max(self._seconds[knot] + linear.alpha * (context - self._contexts[knot]), _LEFT * self._seconds[knot])
            if age >= _LEAST_WEIGHT
            else float(self.at(np.array([KNOTS[knot]]), context, linear)[0])
            for (knot, _), age in zip(points, ages, strict=True)
        ]
        at_step = sum(weight * one for (_, weight), one in zip(points, before, strict=True))
        at_step /= sum(weight for _, weight in points)
        error = seconds - at_step
        if min(ages) >= _LEAST_WEIGHT and (error > 0.0 or min(self._shown[knot] for knot, _ in points) >= _TRUSTED):
            error = min(max(error, -_FARTHEST * at_step), _FARTHEST * at_step)
        self._num_steps += 1
        moved = 0.0
        for (knot, weight), old, start in zip(points, ages, before, strict=True):
            was_known = old >= _LEAST_WEIGHT
            # A step that is disturbed takes longer, never shorter. So a new point follows a faster step at once.
            is_new = not was_known or (error < 0.0 and self._shown[knot] < _TRUSTED)
            rate = 1.0 if is_new else weight / (old + weight)
            if was_known and self._shown[knot] >= _TRUSTED:
                moved += weight * rate * error / at_step
            # The point moves to this step's context, so a change of alpha does not make old steps wrong.
            self._seconds[knot] = start * (1.0 + rate * error / at_step)
            self._contexts[knot] = context
            kept = self._weights[knot] = min(old + weight, _MEMORY)
            self._shown[knot] = 1 + (self._shown[knot] if was_known else 0)
            self._visited[knot] = self._num_steps
            self._known_until[knot] = self._num_steps + math.log(_LEAST_WEIGHT / kept) / math.log(_KEPT)
        self._move_others(1.0 + _COMMON * moved, linear.alpha)
        self._known = self._believed(linear.alpha)

    def _move_others(self, factor: float, alpha: float) -> None:
        """Lets the points that a step has not visited follow those that it has made slower or faster by this factor.

        Other work on a device makes all steps slower for a time. If the other points stayed where they were, a width would
        seem dear, or cheap, only because of the time at which it was last tried. Nothing makes all steps faster than they
        are without other work. So other points only sink as far as they have risen.
        """
        slower, self._slower = self._slower, max(self._slower * factor, 1.0)
        factor = self._slower / slower
        if factor == 1.0:
            return
        for knot, until in enumerate(self._known_until):
            if self._visited[knot] < self._num_steps <= until:
                own = self._seconds[knot] - alpha * self._contexts[knot]
                self._seconds[knot] += (factor - 1.0) * max(own, _LEFT * self._seconds[knot])

    def _believed(self, alpha: float) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]] | None:
        """The known points by ascending numbers of tokens. Those that few steps have shown are moved towards the point
        before them. A step that is disturbed takes longer, never shorter. If the first wide step was disturbed, and was
        believed, no further one would be tried for long."""
        known = [knot for knot, until in enumerate(self._known_until) if self._num_steps <= until]
        if not known:
            return None
        # A new point far above a trusted one of more tokens was disturbed. It would hide that fewer tokens take less.
        least = math.inf
        for knot in reversed(known[:]):
            own = self._seconds[knot] - alpha * self._contexts[knot]
            if self._shown[knot] >= _TRUSTED:
                least = min(least, own)
            elif own > (1.0 + _FARTHEST) * least:
                known.remove(knot)
        seconds: list[float] = []
        last = math.inf
        for knot in known:
            # Points are compared as if all of them had the same context.
            of_context = alpha * self._contexts[knot]
            own, shown = self._seconds[knot] - of_context, self._shown[knot]
            if shown < _TRUSTED and own > last:
                own = last + (own - last) * shown / (shown + 1.0)
            seconds.append(own + of_context)
            last = own
        contexts = [self._contexts[knot] for knot in known]
        return np.array([KNOTS[knot] for knot in known]), np.array(seconds), np.array(contexts)

    def _weight(self, knot: int) -> float:
        """The weight of a point by now."""
        return self._weights[knot] * _KEPT ** (self._num_steps - self._visited[knot])
