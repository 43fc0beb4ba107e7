"""Drafts as trees: the nodes that an engine drafted, and the arrays that tree verification needs.

node   0 ─┬─ 1 ─┬─ 2        tokens   [7 4 5 9 5]
          │     └─ 4        parents  [-1 0 1 0 1]    node 0, the root, is the request's last token
          └─ 3
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec.errors import ConfigError

Allocator: TypeAlias = Callable[[int, type[np.generic]], NDArray[Any]]
"""A function that is called as allocate(n, dtype) and returns a contiguous array of n elements, like numpy.zeros."""


class Source(IntEnum):
    """Where a node of a draft comes from. If several sources have it, the one with the longest matching context."""

    ROOT = 0
    """The node is not drafted: it is the request's last token."""
    REQUEST = 1
    """The request's own prompt and output."""
    GLOBAL = 2
    """Outputs of finished requests of the same namespace."""
    CORPUS = 3
    """A corpus that the operator attached."""
    MODEL = 4
    """A draft model, not the engine's suffix indexes."""


class Outcome(IntEnum):
    """Whether a row of a batch got a draft, and if not, why."""

    DRAFTED = 0
    NO_ROOM = 1
    """The row's limits allow no drafted token."""
    NOT_INDEXED = 2
    """The prompt's index is still being built."""
    NO_OUTPUTS = 3
    """The request's own text has no match, and its namespace has neither finished outputs nor corpora."""
    NO_MATCH = 4
    """The end of the text occurs nowhere earlier."""
    UNLIKELY = 5
    """The end of the text has a match, but no continuation is likely enough to be drafted."""
    NO_MEMORY = 6
    NOT_OPEN = 7
    """The request is closed, or was never opened."""
    OTHER_TEXT = 8
    """The request's text has a different length than the caller expects."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftRow:
    """The draft of one request, as views of its batch. `DraftBatch` documents the fields."""

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    estimates: NDArray[np.float32]
    sources: NDArray[np.uint8]
    match_len: int
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class DraftBatch:
    """The drafts of b requests with n nodes in total. Row i has the nodes offsets[i] to offsets[i + 1].

    Each row has at least its root, node 0. Nodes are in the order in which they were drafted: best first, and each
    after its parent. So the first k nodes of a row are its best tree of k nodes.
    """

    offsets: NDArray[np.int32]
    """[b + 1]"""
    tokens: NDArray[np.int32]
    """[n]; a root's token is the request's last token."""
    parents: NDArray[np.int32]
    """[n], numbers of the parents within the row; -1 for the root."""
    estimates: NDArray[np.float32]
    """[n], D(N), the estimated probability that the node is accepted; 1 for the root."""
    sources: NDArray[np.uint8]
    """[n], values of `Source`."""
    match_lens: NDArray[np.int32]
    """[b], length in tokens of the longest pattern that the draft continues; 0 without a suffix draft."""
    scores: NDArray[np.float32]
    """[b], expected number of accepted tokens: the sum of the row's estimates without the root's."""

    def __len__(self) -> int:
        return len(self.match_lens)

    def row(self, i: int) -> DraftRow:
        """The draft of the i-th request; raises IndexError if the batch has no such row."""
        if not -len(self) <= i < len(self):
            raise IndexError(f"row must be in [{-len(self)}, {len(self)}), got {i}")
        i %= len(self)
        nodes = slice(self.offsets[i], self.offsets[i + 1])
        return DraftRow(
            tokens=self.tokens[nodes],
            parents=self.parents[nodes],
            estimates=self.estimates[nodes],
            sources=self.sources[nodes],
            match_len=int(self.match_lens[i]),
            score=float(self.scores[i]),
        )

    def first(self, num_nodes: NDArray[np.int32]) -> DraftBatch:
        """Returns the best nodes of each row, at most num_nodes[i] in row i, its root not counted. Only match_lens is
        shared with this batch; the other arrays are copies."""
        sizes = np.minimum(np.diff(self.offsets), num_nodes + 1)
        offsets = np.zeros(len(self) + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        kept = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1] - offsets[:-1], sizes)
        estimates = self.estimates[kept]
        return DraftBatch(
            offsets=offsets,
            tokens=self.tokens[kept],
            parents=self.parents[kept],
            estimates=estimates,
            sources=self.sources[kept],
            match_lens=self.match_lens,
            scores=np.add.reduceat(estimates, offsets[:-1]) - 1 if len(self) else self.scores,
        )


@dataclass(frozen=True, slots=True, eq=False)
class TreeArrays:
    """A batch of b drafts, each padded to `width` nodes.

    A padding node has token 0 and depth 1, attends to the root and itself, and has no links to or from other nodes.
    """

    tokens: NDArray[np.int64]
    """[b, width]"""
    depths: NDArray[np.int64]
    """[b, width]; the root has depth 0."""
    mask: NDArray[np.bool_]
    """[b, width, width], the tree mask. Node i attends to node j where mask[:, i, j]: j is i or an ancestor of i."""
    next_token: NDArray[np.int64]
    """[b, width], the first child of each node, or -1. Children are in the order of the nodes."""
    next_sibling: NDArray[np.int64]
    """[b, width], the next child of the same parent, or -1."""
    num_nodes: NDArray[np.int32]
    """[b], number of nodes without padding."""


class DraftBuffers:
    """Memory that `Engine.draft_followed()` reuses for each batch. The batches that it returns are views of this memory.

    A batch is valid until the next call that writes to the same buffers. Only one call at a time may write to them.
    """

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        """Makes room for `max_rows` rows of `max_tokens` drafted nodes, their roots not counted. Raises ConfigError if
        a size is not an integer or is too small."""
        self.max_rows = _size("max_rows", max_rows, 1)
        self.max_tokens = _size("max_tokens", max_tokens, 0)
        max_nodes = max_rows * (max_tokens + 1)
        self._batch = DraftBatch(
            offsets=np.zeros(max_rows + 1, np.int32),
            tokens=np.zeros(max_nodes, np.int32),
            parents=np.zeros(max_nodes, np.int32),
            estimates=np.zeros(max_nodes, np.float32),
            sources=np.zeros(max_nodes, np.uint8),
            match_lens=np.zeros(max_rows, np.int32),
            scores=np.zeros(max_rows, np.float32),
        )
        self.outcomes: NDArray[np.uint8] = np.zeros(max_rows, np.uint8)
        """[max_rows], values of `Outcome`. The first elements belong to the rows of the latest batch."""
        b = self._batch
        self.ends: NDArray[np.int64] = np.zeros(max_rows, np.int64)
        """[max_rows], number of tokens in each row's KV cache."""
        self.rooms: NDArray[np.int32] = np.zeros(max_rows, np.int32)
        """[max_rows], number of nodes that each row's limits allowed, its root not counted."""
        self.native = _core.DraftBuffers(
            b.offsets, b.tokens, b.parents, b.estimates, b.sources, b.match_lens, b.scores, self.outcomes, self.rooms
        )
        """The native engine's view of these buffers."""

    def batch(self, rows: int, nodes: int) -> DraftBatch:
        """The first `rows` rows with `nodes` nodes in total, as views."""
        b = self._batch
        return DraftBatch(
            b.offsets[: rows + 1],
            b.tokens[:nodes],
            b.parents[:nodes],
            b.estimates[:nodes],
            b.sources[:nodes],
            b.match_lens[:rows],
            b.scores[:rows],
        )


class TreeBuffers:
    """Memory that `build_tree_arrays()` reuses for each batch. The arrays that it returns are views of this memory.

    Arrays are valid until the next call that writes to the same buffers. Only one call at a time may write to them.
    """

    def __init__(self, max_rows: int, max_width: int, allocate: Allocator = np.zeros) -> None:
        """Makes room for `max_rows` rows of `max_width` nodes in memory from `allocate`, for example pinned memory.
        Raises ConfigError if a size is not an integer >= 1, or `allocate` returned an unsuitable array."""
        self.max_rows = _size("max_rows", max_rows, 1)
        self.max_width = _size("max_width", max_width, 1)
        words = -(-self.num_bytes(max_rows, max_width) // 8)
        self.memory: NDArray[np.int64] = _allocated(allocate, words, np.int64)
        """For b rows of w nodes: the tokens, depths, first children and next siblings, b * w numbers each, followed by
        the mask of b * w * w bytes. One copy of the first `num_bytes()` bytes moves them all."""
        self.num_nodes: NDArray[np.int32] = _allocated(allocate, max_rows, np.int32)
        self.native = _core.TreeBuffers(self.memory, self.num_nodes)
        """The native function's view of these buffers."""
        self._last = self._views(1, 1)

    @staticmethod
    def num_bytes(rows: int, width: int) -> int:
        """Number of bytes at the beginning of `memory` that hold the arrays of `rows` rows of `width` nodes."""
        return rows * width * (32 + width)

    def arrays(self, rows: int, width: int) -> TreeArrays:
        """The arrays of a batch of `rows` rows of `width` nodes, as views."""
        if self._last.tokens.shape != (rows, width):
            self._last = self._views(rows, width)
        return self._last

    def _views(self, rows: int, width: int) -> TreeArrays:
        n = rows * width
        tokens, depths, next_token, next_sibling = self.memory[: 4 * n].reshape(4, rows, width)
        mask = self.memory.view(np.bool_)[32 * n : self.num_bytes(rows, width)]
        return TreeArrays(
            tokens, depths, mask.reshape(rows, width, width), next_token, next_sibling, self.num_nodes[:rows]
        )


def build_tree_arrays(
    batch: DraftBatch, width: int, out: TreeBuffers | None = None, *, num_drafted: NDArray[np.int32] | None = None
) -> TreeArrays:
    """Pads each row of the batch to `width` nodes, in one native call that releases the GIL. Raises ConfigError if a
    row takes more nodes than `width` or than it has, its nodes are not a tree in topological order, or `out` is too
    small. `out` is then unchanged.

    Args:
        batch: Trees in topological order.
        width: Number of nodes per row after padding, its root included.
        num_drafted: int32[b], number of best nodes to take from each row, its root not counted. None takes all.
        out: Buffers to write to; the result is valid until the next call with the same buffers. None allocates new
            memory.
    """
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise ConfigError(f"width must be an integer >= 1, got {width!r}; each row has its root at least")
    rows = max(len(batch.offsets) - 1, 0)
    if out is None:
        out = TreeBuffers(max(rows, 1), width, allocate=np.empty)
    elif rows > out.max_rows or width > out.max_width:
        raise ConfigError(
            f"out must have room for {rows} rows of {width} nodes, got TreeBuffers({out.max_rows}, {out.max_width}); "
            "make larger buffers"
        )
    _core.build_tree_arrays(batch.offsets, batch.tokens, batch.parents, num_drafted, width, out.native)
    return out.arrays(rows, width)


def _size(name: str, value: object, low: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ConfigError(f"{name} must be an integer >= {low}, got {value!r}; pass the most that a batch may have")
    return value


def _allocated(allocate: Allocator, size: int, dtype: type[np.generic]) -> NDArray[Any]:
    array = allocate(size, dtype)
    if array.dtype != dtype or array.shape != (size,) or not array.flags.c_contiguous or not array.flags.writeable:
        raise ConfigError(
            f"allocate must return a contiguous, writable {np.dtype(dtype)}[{size}], "
            f"got {array.dtype}{list(array.shape)}; numpy.zeros is one that does"
        )
    return array
