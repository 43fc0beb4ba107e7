"""How long the parts of a step take: lines through observed seconds, kept true while the server runs.

    verify    a + c * tokens, of rows * width tokens      SmartSpec, eq. 7, of one length of context
    draft     d0 + d1 * rows
    catch up  e0 + e1 * tokens

Only ratios matter to a policy, so that what was never observed is taken as a share of a verification.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median, median_low

_FORGETTING = 0.98
"""What an observation counts after the next one: fifty or so are remembered."""
_WARM_UP = 8
"""Observations that are fitted anew with each, before medians of residuals mean something."""
_OUTLIER = 4.0
"""Observations count as if they lay at most that many median residuals, or medians while warming up, away."""
_MIN_SPREAD = 0.05
"""A median residual is taken as at least this share of the prediction, so that exact observations can still change;
and sizes that differ by less than this share of their mean say little of the slope."""


class Line:
    """Seconds = intercept + slope * size, both never negative.

    Least squares with exponential forgetting, recursively from weighted sums. While all sizes are alike the slope
    cannot be known; it stays what it was.
    """

    def __init__(self, slope_share: float) -> None:
        """`slope_share`: how much of a first observation's seconds the slope makes, in [0, 1]."""
        self.intercept = 0.0
        self.slope = 0.0
        self.num_observed = 0
        self._slope_share = slope_share
        self._first: list[tuple[float, float]] = []
        self._residuals: deque[float] = deque(maxlen=31)
        self._clear()

    def at(self, size: float) -> float:
        """Predicted seconds."""
        return self.intercept + self.slope * size

    def observe(self, size: float, seconds: float) -> None:
        """Takes in a measured time. Sizes and seconds that are not positive and finite are faults of a clock and are
        left out."""
        if not (0 < size < math.inf and 0 < seconds < math.inf):
            return
        self.num_observed += 1
        if self.num_observed <= _WARM_UP:
            # The first steps of a server compile and allocate: the shorter ones are believed, and that a larger step
            # may take longer in proportion.
            self._first.append((size, seconds))
            typical_size = median_low([one_size for one_size, _ in self._first])
            typical_seconds = median_low([one_seconds for _, one_seconds in self._first])
            self._clear()
            for one_size, one_seconds in self._first:
                limit = _OUTLIER * typical_seconds * max(one_size / typical_size, 1.0)
                self._add(one_size, min(one_seconds, limit))
            return
        predicted = self.at(size)
        residual = seconds - predicted
        spread = max(median(self._residuals), _MIN_SPREAD * predicted) if self._residuals else math.inf
        self._residuals.append(abs(residual))
        limit = _OUTLIER * spread
        self._add(size, predicted + min(max(residual, -limit), limit))

    def _clear(self) -> None:
        self._weight = self._size = self._seconds = self._size2 = self._product = 0.0

    def _add(self, size: float, seconds: float) -> None:
        first = self._weight == 0.0
        self._weight = self._weight * _FORGETTING + 1.0
        self._size = self._size * _FORGETTING + size
        self._seconds = self._seconds * _FORGETTING + seconds
        self._size2 = self._size2 * _FORGETTING + size * size
        self._product = self._product * _FORGETTING + size * seconds
        mean_size, mean_seconds = self._size / self._weight, self._seconds / self._weight
        if first:
            self.slope = self._slope_share * seconds / size
        else:
            variance = max(self._size2 / self._weight - mean_size**2, 0.0)
            covariance = self._product / self._weight - mean_size * mean_seconds
            # A penalty on the slope's change decides where sizes do not.
            penalty = (_MIN_SPREAD * mean_size) ** 2
            self.slope = max((covariance + penalty * self.slope) / (variance + penalty), 0.0)
        if self.slope * mean_size > mean_seconds:
            # The best line through the origin.
            self.slope = self._product / self._size2
        self.intercept = max(mean_seconds - self.slope * mean_size, 0.0)


class StepCosts:
    """Seconds of verifying, drafting and catching up, learnt from those observed.

    Before a drafter has been timed, its drafting costs a quarter of a verification, whatever the batch, and catching
    up a tenth.
    """

    _DRAFT_SHARE = 0.25
    _CATCH_UP_SHARE = 0.1
    _UNIT = 0.02
    """Seconds of a verification before any was observed: only ratios matter then."""

    def __init__(self) -> None:
        self._verify = Line(slope_share=0.1)
        self._draft = Line(slope_share=0.1)
        self._catch_up = Line(slope_share=0.5)
        self._typical = self._UNIT

    def observe_verify(self, rows: int, width: int, seconds: float) -> None:
        """A verification of `rows` rows of `width` tokens each, their roots included."""
        self._verify.observe(rows * width, seconds)
        self._typical = self._verify.at(rows * width) or self._UNIT

    def observe_draft(self, rows: int, seconds: float) -> None:
        """A draft of the model drafter for `rows` rows, all its passes."""
        self._draft.observe(rows, seconds)

    def observe_catch_up(self, tokens: int, seconds: float) -> None:
        """The drafter's state was brought up to date by `tokens` tokens in all."""
        self._catch_up.observe(tokens, seconds)

    def verify(self, rows: int, width: int) -> float:
        """Seconds of verifying `rows` rows of `width` tokens each."""
        return self._verify.at(rows * width) if self._verify.num_observed else self._UNIT

    def draft(self, rows: int) -> float:
        """Seconds of drafting for `rows` rows; 0 for none."""
        fixed, per_row = self.draft_line
        return fixed + per_row * rows if rows else 0.0

    def catch_up(self, tokens: int) -> float:
        """Seconds of catching up on `tokens` tokens; 0 for none."""
        fixed, per_token = self.catch_up_line
        return fixed + per_token * tokens if tokens else 0.0

    @property
    def draft_line(self) -> tuple[float, float]:
        """Seconds of a draft, and of each of its rows besides."""
        line = self._draft
        return (line.intercept, line.slope) if line.num_observed else (self._DRAFT_SHARE * self._typical, 0.0)

    @property
    def catch_up_line(self) -> tuple[float, float]:
        """Seconds of catching up, and of each token besides."""
        line = self._catch_up
        return (line.intercept, line.slope) if line.num_observed else (self._CATCH_UP_SHARE * self._typical, 0.0)
