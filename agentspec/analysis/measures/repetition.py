"""Where output tokens appeared before: in the request's own prompt, in other outputs, in both or in neither.

A token is repeated if it is in a run of 8 tokens that appears identically elsewhere. Repetition within one output does
not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay.runs import LENGTH, windows

PLACES = ("own_prompt", "other_outputs", "both", "neither")


class OutputRuns:
    """The runs of many outputs, and the number of outputs that contain each."""

    def __init__(self, outputs: Sequence[NDArray[np.int32]]) -> None:
        """`outputs`: all outputs, measured ones and others; identical outputs count separately."""
        distinct = [np.unique(windows(output)) for output in outputs]
        runs = np.concatenate(distinct) if distinct else np.zeros(0, np.uint64)
        self._runs, self._counts = np.unique(runs, return_counts=True)

    def elsewhere(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which runs of one of these outputs are in another one too."""
        if not len(self._runs):
            return np.zeros(len(hashes), np.bool_)
        places = np.minimum(np.searchsorted(self._runs, hashes), len(self._runs) - 1)
        found: NDArray[np.bool_] = (self._runs[places] == hashes) & (self._counts[places] >= 2)
        return found


def repeated_tokens(output: NDArray[np.int32], prompt: NDArray[np.int32], others: OutputRuns) -> NDArray[np.int64]:
    """The number of tokens of an output in each of PLACES, int64[4]."""
    hashes = windows(output)
    in_prompt = _covered(np.isin(hashes, windows(prompt)), len(output))
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
    """The counts of PLACES as shares that sum to 1; None if all are 0."""
    total = int(counts.sum())
    return {name: round(int(count) / total, 6) for name, count in zip(PLACES, counts, strict=True)} if total else None


def _covered(repeated: NDArray[np.bool_], length: int) -> NDArray[np.bool_]:
    """Which of `length` tokens are in a repeated run."""
    changes = np.zeros(length + 1, np.int64)
    starts = np.flatnonzero(repeated)
    np.add.at(changes, starts, 1)
    np.add.at(changes, starts + LENGTH, -1)
    covered: NDArray[np.bool_] = changes.cumsum()[:length] > 0
    return covered
