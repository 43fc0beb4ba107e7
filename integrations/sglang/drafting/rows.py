"""The rows of a decode step: their drafts, and what is counted of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.drafts import DraftBatch, Source
from agentspec.integrations.sglang.metrics import Counters

_SOURCE_LABELS = tuple(source.name.lower() if source is not Source.ROOT else "none" for source in Source)


@dataclass(frozen=True, slots=True)
class DraftedStep:
    """What was drafted in a step whose result is not processed yet; one entry a row."""

    sources: NDArray[np.uint8]
    """[b], values of `Source`: where the likeliest token of the row's draft came from; the root where there is none."""
    num_drafted: NDArray[np.int32]
    """[b], drafted tokens, the root not counted."""

    @classmethod
    def of(cls, drafts: DraftBatch, num_drafted: NDArray[np.int32]) -> DraftedStep:
        """Of the first num_drafted[i] nodes behind the root of each row."""
        return cls(drafts.sources[drafts.offsets[:-1] + (num_drafted > 0)], num_drafted)

    def count_drafted(self, counters: Counters) -> None:
        counters.add("steps", 1)
        rows = np.bincount(self.sources, minlength=len(_SOURCE_LABELS))
        self._add("verify_steps", rows, rows, counters)
        self._add("drafted_tokens", self._sums(self.num_drafted), rows, counters)

    def count_accepted(self, counters: Counters, num_accepted: Sequence[int]) -> None:
        """Takes the accepted tokens of each row, bonus tokens not counted."""
        if len(num_accepted) == len(self.sources):
            rows = np.bincount(self.sources, minlength=len(_SOURCE_LABELS))
            self._add("accepted_tokens", self._sums(num_accepted), rows, counters)

    def _sums(self, values: Sequence[int] | NDArray[np.int32]) -> NDArray[np.float64]:
        return np.bincount(self.sources, weights=values, minlength=len(_SOURCE_LABELS))

    @staticmethod
    def _add(name: str, amounts: NDArray[np.float64] | NDArray[np.int64], rows: NDArray[np.int64], counters: Counters) -> None:
        for source in np.flatnonzero(rows).tolist():
            counters.add(name, int(amounts[source]), _SOURCE_LABELS[source])


def roots_only(roots: NDArray[np.int32]) -> DraftBatch:
    """A batch in which every row holds its root, int32[b], and nothing else."""
    n = len(roots)
    return DraftBatch(
        offsets=np.arange(n + 1, dtype=np.int32),
        tokens=roots,
        parents=np.full(n, -1, np.int32),
        estimates=np.ones(n, np.float32),
        sources=np.full(n, int(Source.ROOT), np.uint8),
        match_lens=np.zeros(n, np.int32),
        scores=np.zeros(n, np.float32),
    )
