"""Runs of tokens, by which repeated text is found."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LENGTH = 8
"""The number of tokens of a run. Shorter repeats do not count."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def windows(tokens: NDArray[np.int32]) -> NDArray[np.uint64]:
    """A hash of the run of LENGTH tokens at each position of int32[n], uint64[max(n - LENGTH + 1, 0)]. Different runs
    have the same hash once in 2**64."""
    n = len(tokens) - LENGTH + 1
    found = np.zeros(max(n, 0), np.uint64)
    values = tokens.astype(np.uint64) + np.uint64(1)
    for at in range(LENGTH if n > 0 else 0):
        found = (found ^ values[at : at + n]) * _MULTIPLIER
        found ^= found >> np.uint64(29)
    return found
