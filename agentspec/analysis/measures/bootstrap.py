"""Intervals of ratios by the bootstrap over sessions.

Outputs of one session resemble each other, so sessions are drawn instead of outputs. Only the sums are resampled. What
the engine has learnt stays the same, because a session that is drawn twice would repeat itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_DRAWS = 400
_SHARE = 0.9


def ratio_interval(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], groups: Sequence[str], seed: int
) -> dict[str, float] | None:
    """The ratio of two sums, and the range that holds 90 % of the ratios when groups are drawn at random.

    Args:
        numerators: [n]
        denominators: [n], >= 0.
        groups: [n], the session of each item. If all items have the same session, items are drawn instead.
        seed: Seed of the draws.

    Returns:
        mean, low and high; None if the denominators are all 0.
    """
    if not denominators.sum() > 0:
        return None
    names, index = np.unique(np.asarray(groups), return_inverse=True)
    index = index.reshape(-1)
    if len(names) == 1:
        index = np.arange(len(numerators))
    above, below = np.bincount(index, numerators), np.bincount(index, denominators)
    drawn = np.random.default_rng(seed).multinomial(len(above), np.full(len(above), 1 / len(above)), _DRAWS)
    sums = drawn @ below
    ratios = (drawn @ above)[sums > 0] / sums[sums > 0]
    low, high = np.quantile(ratios, [(1 - _SHARE) / 2, (1 + _SHARE) / 2])
    mean = float(above.sum() / below.sum())
    return {
        "mean": round(mean, 4),
        "low": round(min(float(low), mean), 4),
        "high": round(max(float(high), mean), 4),
    }
