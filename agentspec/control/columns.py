"""A batch of drafts by columns, which a width either verifies or not.

Where rows are padded to a common width, the i-th column are the i-th drafted nodes of all rows. Where they are not, a
step may take any nodes: the i-th column are then the i-th b of the batch's nodes, best first.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from agentspec.control.depths import absolute_parents
from agentspec.draft_tree import DraftBatch


@lru_cache(maxsize=64)
def candidate_widths(widths: tuple[int, ...], max_width: int) -> NDArray[np.int64]:
    """The widths to choose from, ascending from 1; see `StepState`."""
    if not widths:
        return np.arange(1, max(max_width, 1) + 1)
    return np.array(sorted({1, *(width for width in widths if 1 <= width <= max_width)}))


def width_of(length: int, candidates: NDArray[np.int64]) -> int:
    """The least width that has room for `length` drafted nodes, or else the greatest."""
    return int(candidates[min(int(candidates.searchsorted(length + 1)), len(candidates) - 1)])


def rows_between(drafts: DraftBatch, start: int, end: int) -> DraftBatch:
    """The rows from `start` to `end`, as views."""
    offsets = drafts.offsets[start : end + 1]
    nodes = slice(int(offsets[0]), int(offsets[-1]))
    return DraftBatch(
        offsets=offsets - offsets[0],
        tokens=drafts.tokens[nodes],
        parents=drafts.parents[nodes],
        estimates=drafts.estimates[nodes],
        sources=drafts.sources[nodes],
        match_lens=drafts.match_lens[start:end],
        scores=drafts.scores[start:end],
    )


def num_nodes(drafts: DraftBatch) -> NDArray[np.int32]:
    """[b], nodes of each row, its root included."""
    # np.diff says the same in six times the time, which counts in every step.
    return drafts.offsets[1:] - drafts.offsets[:-1]


def num_drafted(drafts: DraftBatch) -> NDArray[np.int32]:
    """[b], nodes of each row without its root."""
    return num_nodes(drafts) - np.int32(1)


def node_columns(drafts: DraftBatch) -> NDArray[np.int64]:
    """[n], the place of each node in its row; roots have 0."""
    return np.arange(len(drafts.estimates)) - np.repeat(drafts.offsets[:-1], num_nodes(drafts))


def ranked_columns(drafts: DraftBatch) -> NDArray[np.int64]:
    """[n], for b rows the columns of nodes that are ranked over the whole batch, b in each but the last; roots have 0.

    A node ranks by its estimate, but never before those that come before it in its row, so that a row's nodes in the
    first columns are its first ones.
    """
    rows, counts = len(drafts), num_nodes(drafts)
    present = np.arange(int(counts.max(initial=1))) < counts[:, None]
    ranks = np.zeros(present.shape, np.float32)
    ranks[present] = drafts.estimates
    ranks[:, 0] = np.inf
    np.minimum.accumulate(ranks, axis=1, out=ranks)
    # Stable, so that of equal nodes of a row the first one stays the first.
    order = np.argsort(-ranks[present], kind="stable")
    columns = np.empty(len(order), np.int64)
    columns[order] = np.arange(len(order)) // max(rows, 1)
    return columns


def ranked_sizes(num_drafted: int, rows: int, num_columns: int) -> NDArray[np.int64]:
    """[num_columns], nodes of each column of so many drafted nodes, ranked."""
    return np.clip(num_drafted - rows * np.arange(num_columns), 0, rows)


def ranked_first(drafts: DraftBatch, columns: NDArray[np.int64], width: int) -> NDArray[np.int32]:
    """[b], drafted nodes of each row in the first width - 1 of the ranked `columns`."""
    kept = np.add.reduceat((columns < width).astype(np.int32), drafts.offsets[:-1])
    return kept - np.int32(1)


def column_sums(
    drafts: DraftBatch, num_columns: int, values: NDArray[np.floating], columns: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """[num_columns], sums of the nodes' `values` over each column but the roots'; `columns`: where they are ranked."""
    rows, nodes = len(drafts), len(values)
    width = nodes // max(rows, 1)
    if columns is not None:
        sums = np.bincount(columns, weights=values, minlength=1)
    elif rows and width * rows == nodes and (num_nodes(drafts) == width).all():
        sums = values.reshape(rows, width).sum(axis=0, dtype=np.float64)
    else:
        sums = np.bincount(node_columns(drafts), weights=values, minlength=1)
    found = np.zeros(num_columns)
    used = min(len(sums) - 1, num_columns)
    if used > 0:
        found[:used] = sums[1 : used + 1]
    return found


def column_sizes(counts: NDArray[np.int32], num_columns: int) -> NDArray[np.int64]:
    """[num_columns], rows that have a node there: those whose count is larger than the column's index."""
    sizes = np.bincount(np.minimum(counts, num_columns), minlength=num_columns + 1)
    return sizes[::-1].cumsum()[::-1][1:]


def cut_first(
    drafts: DraftBatch,
    weights: NDArray[np.float64],
    gains: NDArray[np.float64],
    columns: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """[columns], for widths from 1 on the sum of the estimates of nodes that are cut while their parents are kept.

    Args:
        drafts: Trees, parents before their children.
        weights: [columns], by which estimates of each column are multiplied.
        gains: [columns], sums of the estimates of each column, so multiplied.
        columns: [n], where nodes are ranked.
    """
    num_columns, nodes, rows = len(weights), len(drafts.estimates), len(drafts)
    if columns is not None:
        # Roots and nodes beyond the columns count nothing.
        factors = np.zeros(max(int(columns.max(initial=0)), num_columns) + 1)
        factors[1 : num_columns + 1] = weights
        return _sums_between(columns[absolute_parents(drafts)], drafts.estimates * factors[columns], gains)
    counts = num_nodes(drafts)
    width = nodes // max(rows, 1)
    alike = width * rows == nodes and bool((counts == width).all())
    factors = np.zeros(max(width if alike else int(counts.max(initial=1)), num_columns + 1))
    factors[1 : num_columns + 1] = weights
    if alike:
        values = (drafts.estimates.reshape(rows, width) * factors[:width]).ravel()
    else:
        values = drafts.estimates * factors[node_columns(drafts)]
    return _sums_between(np.maximum(drafts.parents, 0), values, gains)


def _sums_between(
    parents: NDArray[np.integer], values: NDArray[np.float64], gains: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[columns], sums of the `values` of nodes, which are cut first by the widths from their parents' column + 1 to their
    own."""
    num_columns = len(gains)
    begins = np.bincount(parents, weights=values, minlength=num_columns)[:num_columns]
    ends = np.concatenate(([0.0], gains[:-1]))
    sums: NDArray[np.float64] = (begins - ends).cumsum()
    return sums
