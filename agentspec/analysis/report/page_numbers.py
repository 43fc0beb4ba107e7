"""Numbers of a report as a person reads them, each with its unit. A value that was not measured is "not known"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

UNKNOWN = "not known"

# A number that would be written as 1000 of a unit is written as 1.00 of the next.
_ROUNDED_UP = 0.9995


class Interval(NamedTuple):
    """A mean with its 90 % interval, if there is one."""

    mean: float
    low: float | None
    high: float | None

    @property
    def most(self) -> float:
        return self.mean if self.high is None else self.high


def known(value: object) -> float | None:
    """The value as a number; None if it is not a number, not finite, or was not measured."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def interval(value: object) -> Interval | None:
    """An interval of the facts; None if its mean is not known."""
    if not isinstance(value, Mapping):
        return None
    mean, low, high = (known(value.get(key)) for key in ("mean", "low", "high"))
    if mean is None:
        return None
    return Interval(mean, low, high) if low is not None and high is not None else Interval(mean, None, None)


def integer(value: object) -> str:
    """A whole number, written in full: 1,234,567."""
    number = known(value)
    return UNKNOWN if number is None else f"{number:,.0f}"


def counted(value: object, one: str, many: str | None = None) -> str:
    """A number with what it counts: 1 session, 2 sessions."""
    number = known(value)
    many = many or f"{one}s"
    return f"{many} {UNKNOWN}" if number is None else f"{integer(value)} {one if number == 1 else many}"


def short(value: object) -> str:
    """A number of three digits: 12.3 thousand, 1.23 million."""
    number = known(value)
    if number is None:
        return UNKNOWN
    for size, unit in ((1e9, " billion"), (1e6, " million"), (1e4, " thousand")):
        if abs(number) >= _ROUNDED_UP * size:
            return f"{_digits(number / (1e3 if size == 1e4 else size))}{unit}"
    return f"{number:,.0f}"


def decimal(value: object, digits: int = 2) -> str:
    number = known(value)
    return UNKNOWN if number is None else f"{number:,.{digits}f}"


def times(value: object) -> str:
    """A factor: 1.80×."""
    number = known(value)
    return UNKNOWN if number is None else f"{number:.2f}×"


def share(value: object) -> str:
    """A part of a whole: 31 %. Only exactly nothing is shown as 0 %, and only the whole as 100 %."""
    number = known(value)
    if number is None:
        return UNKNOWN
    if 0 < number < 0.005:
        return "< 1 %"
    if 0.995 <= number < 1:
        return "> 99 %"
    return f"{100 * number:.0f} %"


def size(value: object) -> str:
    """Bytes: 1.23 MB, in steps of 1,000."""
    number = known(value)
    if number is None:
        return UNKNOWN
    for unit, power in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(number) >= _ROUNDED_UP * power:
            return f"{_digits(number / power)} {unit}"
    return f"{number:.0f} B" if number == int(number) else f"{number:.1f} B"


def seconds(value: object) -> str:
    number = known(value)
    if number is None:
        return UNKNOWN
    if number < 100:
        return f"{_digits(number)} s"
    minutes, rest = divmod(round(number), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes / 60:.1f} h"


def between(value: object, digits: int = 2) -> str:
    """The bounds of an interval: 2.60 to 3.20, or "" if it has none."""
    if not isinstance(value, Interval) or value.low is None or value.high is None:
        return ""
    return f"{value.low:.{digits}f} to {value.high:.{digits}f}"


def with_interval(value: object, digits: int = 2) -> str:
    """A mean with the bounds of its interval: 2.90 (2.60 to 3.20)."""
    if not isinstance(value, Interval):
        return UNKNOWN
    bounds = between(value, digits)
    return f"{value.mean:.{digits}f} ({bounds})" if bounds else f"{value.mean:.{digits}f}"


def _digits(number: float) -> str:
    """The number with three digits."""
    return f"{number:.{0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2}f}"
