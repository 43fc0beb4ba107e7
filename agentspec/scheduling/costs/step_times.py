"""How long verifications take by a profile, as exactly as it was measured."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from agentspec.scheduling.costs.profile import Profile


class StepTimes:
    """The profile's plane, and what its points leave of it: their mean by batch size and width, interpolated between
    those measured and constant beyond them.

    A plane has no place for what costs a device only from the second row on, or only in wide steps. Where the profile
    has no points the plane is all there is.
    """

    def __init__(self, profile: Profile) -> None:
        left: dict[tuple[int, int], list[float]] = defaultdict(list)
        for point, residual in zip(profile.points, profile.residuals, strict=True):
            left[point.rows, point.width].append(residual)
        self._cost = profile.target
        self._rows = sorted({rows for rows, _ in left})
        self._widths = sorted({width for _, width in left})
        # Nothing is known of a cell without points.
        self._left = [[float(np.mean(left.get((rows, width), 0.0))) for width in self._widths] for rows in self._rows]

    def seconds(self, rows: int, width: float, context: float) -> float:
        """Of a step of `rows` rows of `width` tokens, the mean where they differ, that reads `context` tokens of the KV cache in all."""
        seconds = self._cost.seconds(context, rows * width)
        if self._rows:
            of_rows = [np.interp(width, self._widths, left) for left in self._left]
            seconds += float(np.interp(rows, self._rows, of_rows))
        return max(seconds, 0.0)
