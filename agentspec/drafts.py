"""Drafts as trees: the nodes an engine drafted, and the arrays that a tree verification wants of them.

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
"""Called as allocate(n, dtype), returns memory of n elements as a contiguous array, as numpy.zeros does."""


class Source(IntEnum):
    """Where a node of a draft comes from; of several sources, the one with the longest matching context."""

    ROOT = 0
    """It is not drafted: the request's last token."""
    REQUEST = 1
    """The request's own prompt and output."""
    GLOBAL = 2
    """Outputs of finished requests of the same namespace."""
    CORPUS = 3
    """A corpus that the operator attached."""
    MODEL = 4
    """A model drafter, not the engine."""


class Outcome(IntEnum):
    """What became of a row that an engine was to draft for."""

    DRAFTED = 0
    NO_ROOM = 1
    """No token may be drafted."""
    NOT_INDEXED = 2
    """The prompt's index is being built."""
    NO_OUTPUTS = 3
    """The request's own text gave nothing, and its namespace has neither finished outputs nor corpora."""
    NO_MATCH = 4
    """The text's end occurred nowhere before."""
    UNLIKELY = 5
    """It did, but nothing that followed is likely enough to be drafted."""
    NO_MEMORY = 6
    NOT_OPEN = 7
    """The request is closed, or was never opened."""
    OTHER_TEXT = 8
    """The request's text has another length than the caller says."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftRow:
    """The draft of one request, as views into its batch; see `DraftBatch` for the fields."""

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    estimates: NDArray[np.float32]
    sources: NDArray[np.uint8]
    match_len: int
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class DraftBatch:
    """The drafts of b requests with n nodes in all; row i has the nodes offsets[i] to offsets[i + 1].

    Each row has at least its root, node 0. Nodes come in the order they were drafted, best first and each after
    its parent, so the first k nodes of a row are its best tree of k nodes.
    """

    offsets: NDArray[np.int32]
    """[b + 1]"""
    tokens: NDArray[np.int32]
    """[n]; a root's token is the request's last."""
    parents: NDArray[np.int32]
    """[n], numbered within the row; -1 for the root."""
    estimates: NDArray[np.float32]
    """[n], D(N), the probability that the node is accepted; 1 for the root."""
    sources: NDArray[np.uint8]
    """[n], values of `Source`."""
    match_lens: NDArray[np.int32]
    """[b], tokens of the longest pattern that the draft continues; 0 where nothing, or nothing but a model's tokens, is
    drafted."""
    scores: NDArray[np.float32]
    """[b], sum of the row's estimates without the root: how many drafted tokens are expected to be accepted."""

    def __len__(self) -> int:
        return len(self.match_lens)

    def row(self, i: int) -> DraftRow:
        """The draft of the i-th request; raises IndexError beyond the batch."""
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
        """Each row's best nodes, num_nodes[i] of row i at most, its root not counted; a copy, but for match_lens."""
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

    Padding nodes have token 0 and depth 1, see the root and themselves, and no link leads to or from them.
    """

    tokens: NDArray[np.int64]
    """[b, width]"""
    depths: NDArray[np.int64]
    """[b, width], the root's is 0."""
    mask: NDArray[np.bool_]
    """[b, width, width]; mask[:, i, j] says that node i sees node j: j is i or an ancestor of i."""
    next_token: NDArray[np.int64]
    """[b, width], the first child of each node, or -1; children are in the order of the nodes."""
    next_sibling: NDArray[np.int64]
    """[b, width], the next child of the same parent, or -1."""
    num_nodes: NDArray[np.int32]
    """[b], without padding."""


class DraftBuffers:
    """Memory that `Engine.draft()` writes to, batch after batch; the batches it returns are views of it.

    A batch is valid until the next call that writes to the same buffers; one call at a time may.
    """

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        """Makes room for `max_rows` rows of `max_tokens` drafted nodes, their roots not counted.

        Raises:
            ConfigError: A size is no integer, or too small.
        """
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
        """[max_rows], values of `Outcome`, of the latest batch: its rows come first."""
        b = self._batch
        self.lengths: NDArray[np.int64] = np.zeros(max_rows, np.int64)
        """[max_rows], tokens of each row's text, written by `Engine.draft_rows()`; so are the rooms."""
        self.rooms: NDArray[np.int32] = np.zeros(max_rows, np.int32)
        """[max_rows], the most nodes that each row might have had, its root not counted."""
        self.native = _core.DraftBuffers(
            b.offsets, b.tokens, b.parents, b.estimates, b.sources, b.match_lens, b.scores, self.outcomes,
            self.lengths, self.rooms,
        )  # fmt: skip
        """What the native engine writes through."""

    def batch(self, rows: int, nodes: int) -> DraftBatch:
        """The first `rows` rows with `nodes` nodes in all, as views."""
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
    """Memory that `build_tree_arrays()` writes to, batch after batch; the arrays it returns are views of it.

    Arrays are valid until the next call that writes to the same buffers; one call at a time may.
    """

    def __init__(self, max_rows: int, max_width: int, allocate: Allocator = np.zeros) -> None:
        """Makes room for `max_rows` rows of `max_width` nodes, in memory that `allocate` provides, such as pinned one.

        Raises:
            ConfigError: A size is no integer >= 1, or `allocate` returned something else than it was asked for.
        """
        self.max_rows = _size("max_rows", max_rows, 1)
        self.max_width = _size("max_width", max_width, 1)
        words = _num_words(max_rows, max_width)
        self.memory: NDArray[np.int64] = _allocated(allocate, words, np.int64)
        """For b rows of w nodes: the tokens, depths, first children and next siblings, b * w numbers each, and behind
        them the mask, b * w * w bytes, so that one copy moves them all; see `num_bytes`."""
        self.num_nodes: NDArray[np.int32] = _allocated(allocate, max_rows, np.int32)
        self.native = _core.TreeBuffers(self.memory, self.num_nodes)
        """What the native function writes through."""
        self._last = self._views(1, 1)

    @staticmethod
    def num_bytes(rows: int, width: int) -> int:
        """Bytes at the beginning of `memory` that hold the arrays of `rows` rows of `width` nodes."""
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


def _num_words(rows: int, width: int) -> int:
    return -(-TreeBuffers.num_bytes(rows, width) // 8)


def build_tree_arrays(
    batch: DraftBatch, width: int, out: TreeBuffers | None = None, *, num_drafted: NDArray[np.int32] | None = None
) -> TreeArrays:
    """Pads each row of the batch to `width` nodes, in one native call that releases the GIL.

    Args:
        batch: Trees in topological order.
        width: Nodes a row, its root included.
        num_drafted: int32[b], so many of each row's best nodes are taken, its root not counted; None: all.
        out: Where to write; the result is then valid until the next call with the same buffers. None: new memory.

    Raises:
        ConfigError: More nodes of a row are taken than `width` or than it has, or they are no tree in topological
            order; or `out` is too small. What `out` holds is then as before.
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
