"""Pearson's chi-square test of whether two rows of counts come from the same distribution."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray

# With smaller expected counts the statistic is not distributed as chi-square.
LEAST_EXPECTED = 8.0


def homogeneity(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """The p-value of two rows of counts [n] having one distribution.

    Raises:
        ValueError: Fewer than two cells are not rare.
    """
    both = np.stack([first, second]).astype(float)
    shares = both.sum(1, keepdims=True) / both.sum()
    rare = (shares * both.sum(0)).min(0) < LEAST_EXPECTED
    both = np.column_stack([both[:, ~rare], both[:, rare].sum(1)])
    both = both[:, both.sum(0) > 0]
    expected = shares * both.sum(0)
    if both.shape[1] < 2:
        raise ValueError("a test needs two cells that are not rare; count more")
    return _upper_tail(float(((both - expected) ** 2 / expected).sum()), both.shape[1] - 1)


def p_value(first: Counter[tuple[int, ...]], second: Counter[tuple[int, ...]]) -> float | None:
    """The p-value of two sets of counted answers having one distribution; None where there are too few to test."""
    answers = sorted(first.keys() | second.keys())
    if not answers:
        return None
    try:
        return homogeneity(*np.array([[drawn[answer] for answer in answers] for drawn in (first, second)], np.int64))
    except ValueError:
        return None


def _upper_tail(statistic: float, degrees: int) -> float:
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
