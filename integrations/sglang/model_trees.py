"""From what a drafting loop chose to the trees of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.draft_tree import DraftBatch, Source


def model_drafts(
    chosen: Any,
    rows: Sequence[int],
    rooms: Sequence[int],
    roots: NDArray[np.int32],
    topk: int,
    min_estimate: float,
) -> DraftBatch:
    """The trees of `rows`, best first; every other row is its root.

    Args:
        chosen: What `TreeDrafting.draft_forward` returns, as attributes `parents`, `chosen`, `tokens`, `estimates`.
        rows: Rows of the batch that they are for, ascending.
        rooms: For each of `rows` the most nodes, its root not counted.
        roots: int32[b], the last token of each row of the batch.
        topk: Candidates a group.
        min_estimate: Nodes whose estimate is smaller are left out.
    """
    trees = zip(
        chosen.parents.tolist(), chosen.chosen.tolist(), chosen.tokens.tolist(), chosen.estimates.tolist(), strict=True
    )
    by_row = {row: _tree(*tree, topk, room, min_estimate) for row, room, tree in zip(rows, rooms, trees, strict=True)}
    offsets, tokens, parents, estimates = [0], [], [], []
    scores = np.zeros(len(roots), np.float32)
    for row, root in enumerate(roots.tolist()):
        nodes = by_row.get(row, ())
        tokens += [root, *(token for token, _, _ in nodes)]
        parents += [-1, *(parent for _, parent, _ in nodes)]
        estimates += [1.0, *(estimate for _, _, estimate in nodes)]
        scores[row] = sum(estimate for _, _, estimate in nodes)
        offsets.append(len(tokens))
    sources = np.full(len(tokens), int(Source.MODEL), np.uint8)
    sources[offsets[:-1]] = int(Source.ROOT)
    return DraftBatch(
        offsets=np.array(offsets, np.int32),
        tokens=np.array(tokens, np.int32),
        parents=np.array(parents, np.int32),
        estimates=np.array(estimates, np.float32),
        sources=sources,
        match_lens=np.zeros(len(roots), np.int32),
        scores=scores,
    )


def _tree(
    groups: list[int],
    candidates: list[int],
    tokens: list[int],
    estimates: list[float],
    topk: int,
    room: int,
    min_estimate: float,
) -> list[tuple[int, int, float]]:
    """(token, parent node, estimate) of the nodes 1 and up.

    Candidates are numbered in the order they were drafted, so a parent's number is smaller, and its estimate is not:
    sorted by falling estimate, with ties by number, each node follows its parent.
    """
    order = sorted(range(len(candidates)), key=lambda i: (-estimates[i], candidates[i]))
    nodes: list[tuple[int, int, float]] = []
    place = {-1: 0}
    for i in order:
        if len(nodes) >= room or estimates[i] < min_estimate:
            break
        group = candidates[i] // topk
        parent = place.get(-1 if group == 0 else groups[group])
        if parent is None:
            # Rounding put a child before its parent.
            continue
        nodes.append((tokens[i], parent, estimates[i]))
        place[candidates[i]] = len(nodes)
    return nodes
