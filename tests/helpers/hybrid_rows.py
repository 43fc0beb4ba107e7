"""Rows of drafts with estimates and sources, for the policy of hybrid steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentspec import DraftBatch
from agentspec.policy.merging import Tree


def chain(tokens: Sequence[int], estimates: Sequence[float], source: int = 1, root: int = 0) -> Tree:
    """The root and one node after the other."""
    n = len(tokens) + 1
    return Tree([root, *tokens], list(range(-1, n - 1)), [1.0, *estimates], [0, *[source] * (n - 1)])


def batch(rows: Sequence[Tree], match_lens: Sequence[int] | None = None) -> DraftBatch:
    """The rows as an engine or a drafter returns them."""
    return DraftBatch(
        offsets=np.cumsum([0, *(len(row.tokens) for row in rows)], dtype=np.int32),
        tokens=np.array([x for row in rows for x in row.tokens], np.int32),
        parents=np.array([x for row in rows for x in row.parents], np.int32),
        estimates=np.array([x for row in rows for x in row.estimates], np.float32),
        sources=np.array([x for row in rows for x in row.sources], np.uint8),
        match_lens=np.array(match_lens if match_lens is not None else [len(r.tokens) - 1 for r in rows], np.int32),
        scores=np.array([sum(row.estimates) - 1.0 for row in rows], np.float32),
    )
