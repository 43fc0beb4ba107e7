"""Makes batches of drafts from rows written by hand."""

from __future__ import annotations

import numpy as np

from agentspec import DraftBatch


def make_batch(rows: list[tuple[list[int], list[int]]]) -> DraftBatch:
    """Makes a batch of rows (tokens, parents). build_tree_arrays() does not read the other fields."""
    sizes = [len(tokens) for tokens, _ in rows]
    return DraftBatch(
        offsets=np.cumsum([0, *sizes], dtype=np.int32),
        tokens=np.array([t for tokens, _ in rows for t in tokens], dtype=np.int32),
        parents=np.array([p for _, parents in rows for p in parents], dtype=np.int32),
        estimates=np.ones(sum(sizes), dtype=np.float32),
        sources=np.zeros(sum(sizes), dtype=np.uint8),
        match_lens=np.arange(len(rows), dtype=np.int32),
        scores=np.full(len(rows), 0.5, dtype=np.float32),
    )
