"""The ratio of two servers' figures, with an interval.

A figure is a sum over units, or a quotient of two sums: seconds a task, tokens a second. Units are turns or tasks that
both servers did. The variance of the ratio's logarithm is that of its linear part (the delta method), and the interval
is Student's, because there may be few units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ConfigError

SHARE = 0.95
_MIN_UNITS = 3


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with the interval that holds the true one in SHARE of experiments; without one where units are few."""

    value: float
    low: float | None
    high: float | None


def ratio_of_sums(above: Sequence[NDArray[np.float64]], below: Sequence[NDArray[np.float64]]) -> Ratio | None:
    """The product of the sums of `above` over the product of the sums of `below`, all arrays [n] of values >= 0 of the
    same n units; None if a sum is 0."""
    totals = [float(values.sum()) for values in (*above, *below)]
    if not totals or min(totals) <= 0:
        return None
    signs = [1.0] * len(above) + [-1.0] * len(below)
    n = len(above[0])
    log_ratio = sum(sign * math.log(total) for sign, total in zip(signs, totals, strict=True))
    value = math.exp(log_ratio)
    if n < _MIN_UNITS:
        return Ratio(value, None, None)
    # The derivative of the logarithm with respect to the weight of each unit.
    influence = np.zeros(n)
    for sign, values, total in zip(signs, (*above, *below), totals, strict=True):
        influence += sign * n * values / total
    spread = _quantile(n - 1) * float(influence.std(ddof=1)) / math.sqrt(n)
    return Ratio(value, value * math.exp(-spread), value * math.exp(spread))


def _quantile(degrees: int) -> float:
    """Student's quantile for a two-sided interval of SHARE."""
    try:
        from scipy.stats import t
    except ImportError:
        raise ConfigError("intervals need scipy; run pip install 'sglang-agentspec[ab]'") from None
    return float(t.ppf((1 + SHARE) / 2, degrees))
