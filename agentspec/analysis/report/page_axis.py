"""Axes of plots: their range, their ticks, and the position of a value on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_MAX_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis from `low` to `high`; `reference` is a value to compare others with, and its name."""

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    logarithmic: bool = False
    reference: tuple[float, str] | None = None
    suffix: str = ""

    def at(self, value: float) -> float:
        """The position of a value in per cent of the axis; values beyond an end lie at that end."""
        place = (self._scaled(value) - self._scaled(self.low)) / (self._scaled(self.high) - self._scaled(self.low))
        return round(100 * min(max(place, 0.0), 1.0), 2)

    def down(self, value: float) -> float:
        """The position of a value in per cent from the upper end, as SVG counts."""
        return round(100 - self.at(value), 2)

    def tick(self, value: float) -> str:
        """The label of a tick."""
        for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
            if abs(value) >= size:
                return f"{value / (1e3 if size == 1e4 else size):g}{unit}{self.suffix}"
        return f"{value:,.10g}{self.suffix}"

    def _scaled(self, value: float) -> float:
        return math.log(max(value, self.low)) if self.logarithmic else value


def linear(
    title: str,
    values: Iterable[float],
    *,
    start: float = 0.0,
    reference: tuple[float, str] | None = None,
    suffix: str = "",
) -> Axis:
    """An axis from `start`, or from a tick below the least value, to a tick at or above the greatest value."""
    spanned = [start, *values, *([reference[0]] if reference else [])]
    low, high = min(spanned), max(spanned)
    if high <= low:
        high = low + 1.0
    step = _step(low, high)
    # The start stays the first tick even where it is not a multiple of the step, as 1 often is not.
    first = start if low == start else round(math.floor(low / step + 1e-9) * step, 12)
    ticks = [first]
    while ticks[-1] < high - 1e-9 * step:
        ticks.append(round((math.floor(ticks[-1] / step + 1e-9) + 1) * step, 12))
    # Labels of closer ticks would touch.
    if len(ticks) > 2 and ticks[1] - ticks[0] < 0.5 * step:
        del ticks[1]
    return Axis(title=title, low=first, high=ticks[-1], ticks=ticks, reference=reference, suffix=suffix)


def _step(low: float, high: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that keeps to the maximum number of ticks."""
    power: float = 10.0 ** math.floor(math.log10((high - low) / _MAX_TICKS))
    for factor in (1, 2, 5, 10):
        if (high - low) / (factor * power) <= _MAX_TICKS - 1:
            break
    return factor * power
