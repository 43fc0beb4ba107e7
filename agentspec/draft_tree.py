"""Drafts as trees: the nodes an engine drafted, and the arrays that a tree verification wants of them.

node   0 ─┬─ 1 ─┬─ 2        tokens   [7 4 5 9 5]
          │     └─ 4        parents  [-1 0 1 0 1]    node 0, the root, is the request's last token
          └─ 3
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec.errors import ConfigError


class Source(IntEnum):
    """Where a node of a draft comes from."""

    ROOT = 0
    """It is not drafted: the request's last token."""
    REQUEST = 1
    """The request's own prompt and output."""
    GLOBAL = 2
    """Outputs of finished requests of the same namespace."""


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
    """[b], tokens of the pattern that the draft continues; 0 where nothing is drafted."""
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


def build_tree_arrays(batch: DraftBatch, width: int) -> TreeArrays:
    """Pads each row of the batch to `width` nodes, in one native call that gives the interpreter's lock back.

    Raises:
        ConfigError: A row has more nodes than `width`, or is no tree in topological order.
    """
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise ConfigError(f"width must be an integer >= 1, got {width!r}; each row has its root at least")
    return TreeArrays(*_core.build_tree_arrays(batch.offsets, batch.tokens, batch.parents, width))
