"""The rows of a decode step: their roots, their drafts, and what is counted of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.draft_tree import DraftBatch, Source
from agentspec.integrations.sglang.counters import Counters

_SOURCE_LABELS = {
    int(Source.ROOT): "none",
    int(Source.REQUEST): "request",
    int(Source.GLOBAL): "global",
    int(Source.CORPUS): "corpus",
    int(Source.MODEL): "model",
}


@dataclass(frozen=True, slots=True)
class DraftedStep:
    """What was drafted in a step whose result is not processed yet; one entry a row."""

    sources: list[str]
    """Where the likeliest token of the row's draft came from."""
    num_drafted: NDArray[np.int32]
    """Drafted tokens, the root not counted."""

    @classmethod
    def of(cls, drafts: DraftBatch) -> DraftedStep:
        num_drafted = np.diff(drafts.offsets).astype(np.int32) - 1
        sources = [
            _SOURCE_LABELS[int(drafts.sources[drafts.offsets[row] + 1]) if n else int(Source.ROOT)]
            for row, n in enumerate(num_drafted.tolist())
        ]
        return cls(sources, num_drafted)

    def count_drafted(self, counters: Counters) -> None:
        counters.add("steps", 1)
        for source, n in zip(self.sources, self.num_drafted.tolist(), strict=True):
            counters.add("verify_steps", 1, source)
            counters.add("drafted_tokens", n, source)

    def count_accepted(self, counters: Counters, num_accepted: Sequence[int]) -> None:
        """Takes the accepted tokens of each row, bonus tokens not counted."""
        for source, accepted in zip(self.sources, num_accepted, strict=False):
            counters.add("accepted_tokens", accepted, source)


def last_token(request: Any, tail: Sequence[int]) -> int:
    """The root of a row, from the scheduler's data alone.

    Args:
        request: SGLang's `Req`.
        tail: tokens accepted in a step that the scheduler has not processed; may be empty.
    """
    for tokens in (tail, request.output_ids, request.origin_input_ids):
        if len(tokens):
            return int(tokens[-1])
    raise ValueError("a request without any token cannot be decoded")


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


def spread(drafts: DraftBatch, rows: list[int], roots: NDArray[np.int32]) -> DraftBatch:
    """Places the trees of `rows`, in rising order, among all rows of the batch; the others get their root."""
    sizes = np.ones(len(roots), np.int64)
    sizes[rows] = np.diff(drafts.offsets)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    n = int(offsets[-1])
    tokens, parents = np.zeros(n, np.int32), np.full(n, -1, np.int32)
    estimates, sources = np.ones(n, np.float32), np.zeros(n, np.uint8)
    match_lens, scores = np.zeros(len(roots), np.int32), np.zeros(len(roots), np.float32)
    tokens[offsets[:-1]] = roots
    for i, row in enumerate(rows):
        source, target = slice(*drafts.offsets[i : i + 2]), slice(*offsets[row : row + 2])
        tokens[target], parents[target] = drafts.tokens[source], drafts.parents[source]
        estimates[target], sources[target] = drafts.estimates[source], drafts.sources[source]
        match_lens[row], scores[row] = drafts.match_lens[i], drafts.scores[i]
    return DraftBatch(
        offsets=offsets,
        tokens=tokens,
        parents=parents,
        estimates=estimates,
        sources=sources,
        match_lens=match_lens,
        scores=scores,
    )
