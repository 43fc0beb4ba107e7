"""A batch of drafts by columns. Column i holds the i-th drafted node of every row; a width verifies whole columns."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from agentspec.drafts import DraftBatch


@lru_cache(maxsize=64)
def candidate_widths(widths: tuple[int, ...], max_width: int) -> NDArray[np.int64]:
    """The widths to choose from, ascending from 1; see `StepState`."""
    if not widths:
        return np.arange(1, max(max_width, 1) + 1)
    return np.array(sorted({1, *(width for width in widths if 1 <= width <= max_width)}))


def width_of(length: int, candidates: NDArray[np.int64]) -> int:
    """The smallest width that has room for `length` drafted nodes, or the largest width if none has."""
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
    """[b], number of nodes of each row, its root included."""
    # np.diff gives the same result but takes six times as long, and this runs in every step.
    return drafts.offsets[1:] - drafts.offsets[:-1]


def num_drafted(drafts: DraftBatch) -> NDArray[np.int32]:
    """[b], number of nodes of each row without its root."""
    return num_nodes(drafts) - np.int32(1)


def node_columns(drafts: DraftBatch) -> NDArray[np.int64]:
    """[n], the index of each node in its row; roots have 0."""
    return np.arange(len(drafts.estimates)) - np.repeat(drafts.offsets[:-1], num_nodes(drafts))


def column_sums(drafts: DraftBatch, num_columns: int, values: NDArray[np.floating]) -> NDArray[np.float64]:
    """[num_columns], sums of the nodes' `values` over each column but the roots'."""
    rows, nodes = len(drafts), len(values)
    width = nodes // max(rows, 1)
    if rows and width * rows == nodes and (num_nodes(drafts) == width).all():
        sums = values.reshape(rows, width).sum(axis=0, dtype=np.float64)
    else:
        sums = np.bincount(node_columns(drafts), weights=values, minlength=1)
    found = np.zeros(num_columns)
    used = min(len(sums) - 1, num_columns)
    if used > 0:
        found[:used] = sums[1 : used + 1]
    return found


def column_sizes(counts: NDArray[np.int32], num_columns: int) -> NDArray[np.int64]:
    """[num_columns], rows that have a node in the column: those whose count is larger than the column's index."""
    sizes = np.bincount(np.minimum(counts, num_columns), minlength=num_columns + 1)
    return sizes[::-1].cumsum()[::-1][1:]


def powers_of_two(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... below `most`, and `most` itself."""
    return (*(1 << power for power in range((most - 1).bit_length())), most)
