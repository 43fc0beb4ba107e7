"""Where output tokens were written before: in the request's own prompt, in other outputs, in both or in neither.

A token is repeated if it lies in a run of 8 tokens that stands elsewhere word for word. What an output repeats of
itself does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RUN = 8
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
PLACES = ("own_prompt", "other_outputs", "both", "neither")


def run_hashes(tokens: NDArray[np.int32]) -> NDArray[np.uint64]:
    """A hash of the run of RUN tokens at each place, uint64[max(n - RUN + 1, 0)]."""
    count = max(len(tokens) - RUN + 1, 0)
    hashes = np.zeros(count, np.uint64)
    values = tokens.astype(np.uint64) + np.uint64(1)
    for i in range(RUN if count else 0):
        hashes = (hashes ^ values[i : i + count]) * _FACTOR
        hashes ^= hashes >> np.uint64(29)
    return hashes


class OutputRuns:
    """The runs of many outputs, and in how many sessions each stands."""

    def __init__(self, outputs: Sequence[NDArray[np.int32]]) -> None:
        """`outputs`: one for each measured output and each other one; the same output twice counts as two."""
        distinct = [np.unique(run_hashes(output)) for output in outputs]
        runs = np.concatenate(distinct) if distinct else np.zeros(0, np.uint64)
        self._runs, self._counts = np.unique(runs, return_counts=True)

    def elsewhere(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which runs of an output that is one of them stand in another one too."""
        if not len(self._runs):
            return np.zeros(len(hashes), np.bool_)
        places = np.minimum(np.searchsorted(self._runs, hashes), len(self._runs) - 1)
        found: NDArray[np.bool_] = (self._runs[places] == hashes) & (self._counts[places] >= 2)
        return found


def repeated_tokens(output: NDArray[np.int32], prompt: NDArray[np.int32], others: OutputRuns) -> NDArray[np.int64]:
    """How many tokens of an output lie in each of PLACES, int64[4]."""
    hashes = run_hashes(output)
    in_prompt = _covered(np.isin(hashes, run_hashes(prompt)), len(output))
    in_others = _covered(others.elsewhere(hashes), len(output))
    return np.array(
        [
            (in_prompt & ~in_others).sum(),
            (~in_prompt & in_others).sum(),
            (in_prompt & in_others).sum(),
            (~in_prompt & ~in_others).sum(),
        ]
    )


def shares(counts: NDArray[np.int64]) -> dict[str, float] | None:
    """The counts of PLACES as shares that sum to 1; None if there are none."""
    total = int(counts.sum())
    return {name: round(int(count) / total, 6) for name, count in zip(PLACES, counts, strict=True)} if total else None


def _covered(repeated: NDArray[np.bool_], length: int) -> NDArray[np.bool_]:
    """Which of `length` tokens lie in a run that is repeated."""
    changes = np.zeros(length + 1, np.int64)
    starts = np.flatnonzero(repeated)
    np.add.at(changes, starts, 1)
    np.add.at(changes, starts + RUN, -1)
    covered: NDArray[np.bool_] = changes.cumsum()[:length] > 0
    return covered
