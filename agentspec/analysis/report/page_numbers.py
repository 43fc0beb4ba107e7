"""Numbers of a page as a person reads them, each with its unit. A value that was not measured is "not known"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

UNKNOWN = "not known"

# A number that would be written as 1000 of a unit is written as 1.00 of the next.
_ROUNDED_UP = 0.9995


def _of_a_number(write: Callable[..., str]) -> Callable[..., str]:
    """Makes a filter of a function of numbers: any other value is not known."""

    @wraps(write)
    def written(value: object, *options: int) -> str:
        return write(value, *options) if isinstance(value, int | float) else UNKNOWN

    return written


@_of_a_number
def integer(number: float) -> str:
    """A whole number, written in full: 1,234,567."""
    return f"{number:,.0f}"


def counted(value: object, one: str) -> str:
    """A number with what it counts: 1 session, 2 sessions."""
    return f"{one}s {UNKNOWN}" if integer(value) == UNKNOWN else f"{integer(value)} {one if value == 1 else one + 's'}"


@_of_a_number
def short(number: float) -> str:
    """A number of three digits: 12.3 thousand, 1.23 million."""
    for size, unit in ((1e9, " billion"), (1e6, " million"), (1e4, " thousand")):
        if number >= _ROUNDED_UP * size:
            return f"{_digits(number / (1e3 if size == 1e4 else size))}{unit}"
    return f"{number:,.0f}"


@_of_a_number
def decimal(number: float, digits: int = 2) -> str:
    return f"{number:,.{digits}f}"


@_of_a_number
def times(number: float) -> str:
    """A factor: 1.80×."""
    return f"{number:.2f}×"


@_of_a_number
def share(number: float) -> str:
    """A part of a whole: 31 %. Only exactly nothing is shown as 0 %, and only the whole as 100 %."""
    if 0 < number < 0.005:
        return "< 1 %"
    if 0.995 <= number < 1:
        return "> 99 %"
    return f"{100 * number:.0f} %"


@_of_a_number
def size(number: float) -> str:
    """Bytes: 1.23 MB, in steps of 1,000."""
    for unit, power in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= _ROUNDED_UP * power:
            return f"{_digits(number / power)} {unit}"
    return f"{number:.0f} B" if number == int(number) else f"{number:.1f} B"


@_of_a_number
def seconds(number: float) -> str:
    if number < 100:
        return f"{_digits(number)} s"
    minutes, rest = divmod(round(number), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes / 60:.1f} h"


def between(interval: Mapping[str, Any] | None) -> str:
    """The bounds of an interval: 2.60 to 3.20, or "" if it has none."""
    return f"{interval['low']:.2f} to {interval['high']:.2f}" if interval and interval["low"] is not None else ""


def with_interval(interval: Mapping[str, Any]) -> str:
    """A mean with the bounds of its interval: 2.90 (2.60 to 3.20)."""
    return f"{interval['mean']:.2f} ({between(interval)})"


def _digits(number: float) -> str:
    """The number with three digits."""
    return f"{number:.{0 if number >= 99.95 else 1 if number >= 9.995 else 2}f}"
