"""Seconds of a step by each token of its context, apart from what its own tokens take.

A plane through seconds, context and tokens does not tell the two apart, because seconds are no plane of the tokens: they
stay the same until arithmetic takes longer than reading the weights. So steps are compared with earlier ones of about the
same number of tokens: what they took longer, by what their context was longer.
"""

from __future__ import annotations

import math
from bisect import bisect_right

KNOTS = [float(number) for number in sorted({round(2.0 ** (half / 2.0)) for half in range(30)})]
"""Numbers of tokens at which steps are summed up: 1, 2, 3, 4, 6, 8, 11, 16, ... A step counts for the two next to it."""
_LEAST_SHARE = 0.1
"""A knot learns nothing from steps that are nearly all its neighbour's."""
_MEMORY = 64.0
"""Number of steps over which a knot averages."""
_TRUSTED = 4.0
"""A knot of fewer steps follows one that is faster than expected at once: its own may have been disturbed."""
_FIRST_SHARE = 0.1
"""The context's share in the seconds of a step, at most, as long as nothing else is known."""
_MOST_SHARE = 0.9
"""The context's share in the seconds of any step, at most. Disturbances make steps longer, so a short one tells the truth."""
_FARTHEST = 0.05
"""A step counts as if it were at most this share of its seconds away from what was expected: a step that waited for
something else tells nothing."""
_DOUBT = 0.2
"""The first value weighs as much as one comparison of contexts that differ by this share of the longest."""
_TOLD = 16.0
"""Number of comparisons with the longest context that the past counts at most."""


def places(batched: float) -> list[tuple[int, float]]:
    """The one or two knots for which a step of `batched` tokens counts, each with its share."""
    place = min(max(bisect_right(KNOTS, batched) - 1, 0), len(KNOTS) - 2)
    share = min(max((batched - KNOTS[place]) / (KNOTS[place + 1] - KNOTS[place]), 0.0), 1.0)
    return [(knot, weight) for knot, weight in ((place, 1.0 - share), (place + 1, share)) if weight >= _LEAST_SHARE]


class ContextCost:
    """Learns from steps one by one."""

    def __init__(self, start: float | None = None) -> None:
        """`start`: seconds per token of context; None: at most a share of each of the first steps."""
        self._guesses = start is None
        self.value = math.inf if start is None else start
        """Seconds per token of context, >= 0; infinite if nothing is known."""
        self._seconds = [0.0] * len(KNOTS)
        self._contexts = [0.0] * len(KNOTS)
        self._weights = [0.0] * len(KNOTS)
        self._told = 0.0
        """The sum of squared differences between contexts that were compared."""
        self._longest = 0.0

    def observe(self, batched: float, context: float, seconds: float) -> None:
        """Learns from a step of `batched` tokens with `context` tokens in the KV cache that took `seconds`."""
        self._longest = max(self._longest, context)
        doubt = _DOUBT * _DOUBT * self._longest * self._longest
        if self._guesses and self._told <= doubt:
            # A share of a first step with a short context would be more than all of a step with a long one.
            self.value = min(self.value, _FIRST_SHARE * seconds / max(context, 1.0))
        at = places(batched)
        share = sum(weight for _, weight in at)
        # The means of both are of the same steps, so what the tokens take is in neither difference.
        usual = sum(weight * self._seconds[knot] for knot, weight in at) / share
        later = seconds - usual
        longer = context - sum(weight * self._contexts[knot] for knot, weight in at) / share
        farthest = _FARTHEST * min(seconds, usual)
        if min(self._weights[knot] for knot, _ in at) >= 1.0:
            error = later - self.value * longer
            error = min(max(error, -farthest), farthest)
            self._told = min(self._told + longer * longer, _TOLD * self._longest * self._longest)
            self.value = max(self.value + error * longer / (self._told + doubt), 0.0)
        for knot, weight in at:
            old = self._weights[knot]
            if old >= (_TRUSTED if later < self.value * longer - farthest else 1.0):
                rate = weight / (old + weight)
                self._seconds[knot] += rate * min(later, self.value * longer + farthest)
                self._contexts[knot] += rate * longer
            else:
                self._seconds[knot], self._contexts[knot] = seconds, context
            self._weights[knot] = min(old + weight, _MEMORY)
        self.value = min(self.value, _MOST_SHARE * seconds / max(context, 1.0))
