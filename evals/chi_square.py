"""Pearson's chi-square tests: whether counts come from a distribution, and whether two rows of counts come from the
same one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray

# With smaller expected counts the statistic is not distributed as chi-square.
LEAST_EXPECTED = 8.0
_TOO_FEW = "a test needs two cells that are not rare; count more"


def goodness_of_fit(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """The p-value of `counts` [n] under `probabilities` [n]; 0 if something impossible was counted.

    Raises:
        ValueError: Fewer than two cells are not rare.
    """
    if counts[probabilities <= 0].any():
        return 0.0
    expected = probabilities * counts.sum()
    rare = expected < LEAST_EXPECTED
    observed = np.append(counts[~rare], counts[rare].sum()).astype(float)
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < LEAST_EXPECTED:
        # The rare cells are too few even together, so they join the smallest other cell.
        smallest = int(expected[:-1].argmin())
        observed[smallest] += observed[-1]
        expected[smallest] += expected[-1]
        observed, expected = observed[:-1], expected[:-1]
    if len(expected) < 2:
        raise ValueError(_TOO_FEW)
    return _upper_tail(float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1)


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
        raise ValueError(_TOO_FEW)
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
