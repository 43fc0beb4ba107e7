"""Intervals of ratios of two sums, such as accept lengths: tokens divided by steps.

An interval is a prediction. A log is one draw of sessions from the work of a service, and the next log is another draw.
The interval holds the ratio of the next log, with as many sessions of the same kind, in 9 of 10 cases. Its width
therefore has the error of both logs, and it shrinks as sessions are added.

Outputs of one session resemble each other, so sessions are the units. The error is that of the jackknife: the ratio is
computed again without each session in turn. Logarithms are used because ratios are positive, and Student's t because
sessions may be few. Sessions of very unequal size count as fewer sessions.

Where only a share of a log's calls was replayed, its own figure has an error that the figure of a wholly replayed log
does not have. The error of the next log is that of whole sessions: of its calls' own differences, only that share counts.
An error of 1 % stays however long the log is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NORMAL = 1.6449
"""The number of standard deviations to either side that hold 90 % of a normal distribution."""

_LEAST_ERROR = 0.01
"""What recorded drafts differ from those of a replay, and what servers with other logs have learnt otherwise."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two sums over sessions."""

    value: float
    error: float
    """The standard error of its logarithm."""
    next_error: float
    """The standard error of the logarithm of the next log's ratio."""
    freedom: float
    """The degrees of freedom of that error, at least 1."""

    def interval(self) -> dict[str, float]:
        """The ratio as mean, and the range that holds the ratio of the next log in 9 of 10 cases as low and high."""
        if not self.error:
            return {key: round(self.value, 4) for key in ("mean", "low", "high")}
        half = quantile(self.freedom) * math.hypot(self.error, self.next_error, _LEAST_ERROR)
        return {
            "mean": round(self.value, 4),
            "low": round(self.value * math.exp(-half), 4),
            "high": round(self.value * math.exp(min(half, 50.0)), 4),
        }


def ratio(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], groups: Sequence[str], share: float = 1.0
) -> Ratio | None:
    """The ratio of the sums of items; None if the denominators are all 0.

    Args:
        numerators: [n], >= 0.
        denominators: [n], >= 0.
        groups: [n], the session of each item. If all items have the same session, each item counts as a session.
        share: The share of the log's items that these are.
    """
    if not denominators.sum() > 0:
        return None
    names, index = np.unique(np.asarray(groups), return_inverse=True)
    index = index.reshape(-1)
    if len(names) == 1:
        index = np.arange(len(numerators))
    above, below = np.bincount(index, numerators), np.bincount(index, denominators)
    above, below = above[below > 0], below[below > 0]
    n, total = len(below), below.sum()
    value = float(above.sum() / total)
    if n == 1 or value <= 0.0:
        return Ratio(value, 0.0, 0.0, 1.0)
    without = (above.sum() - above) / (total - below)
    variance = (n - 1) / n * float(((without - value) ** 2).sum()) / value**2
    of_items = float(((numerators - value * denominators) ** 2).sum()) / float(numerators.sum()) ** 2
    of_next = max(variance - of_items, 0.0) + share * min(variance, of_items)
    freedom = max(float(total**2 / (below**2).sum()) - 1.0, 1.0)
    return Ratio(value, math.sqrt(variance), math.sqrt(of_next), freedom)


def ratio_interval(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], groups: Sequence[str]
) -> dict[str, float] | None:
    """Mean, low and high of a ratio; see ratio() for the arguments and Ratio.interval() for the meaning."""
    found = ratio(numerators, denominators, groups)
    return found.interval() if found is not None else None


def quantile(freedom: float) -> float:
    """The 95 % quantile of Student's t with at least 1 degree of freedom, by its expansion around the normal
    distribution, which is exact to 1 % from 2 degrees of freedom on."""
    z, v = NORMAL, max(freedom, 1.0)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3
