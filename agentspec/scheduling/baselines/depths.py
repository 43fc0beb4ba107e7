"""A batch of draft trees by depth, for acceptance rates that depend on it (SmartSpec, equation 10)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.drafts import DraftBatch


def absolute_parents(drafts: DraftBatch) -> NDArray[np.int64]:
    """[n], the index of each node's parent in the batch; roots are their own."""
    starts = np.repeat(drafts.offsets[:-1], np.diff(drafts.offsets))
    parents: NDArray[np.int64] = starts.astype(np.int64) + np.maximum(drafts.parents, 0)
    return parents


def path_sums(values: NDArray[np.int16], parents: NDArray[np.int64]) -> NDArray[np.int16]:
    """[n], for each node the sum of the values on the path from its root. Roots must have the value 0.

    `parents` are absolute. Each round follows ancestors twice as far.
    """
    sums, ancestors = values, parents
    while True:
        sums = sums + sums.take(ancestors)
        farther = ancestors.take(ancestors)
        if (farther == ancestors).all():
            return sums
        ancestors = farther


@dataclass(frozen=True, slots=True, eq=False)
class DepthProfile:
    """Depth and breadth of a batch's trees, at w widths and for d depths from 1."""

    num_rows: int
    rows: NDArray[np.int64]
    """[w, d], number of rows that reach the depth."""
    branches: NDArray[np.float64]
    """[w, d], mean number of children over the nodes that have any; 1 if none has."""

    @staticmethod
    def of(drafts: DraftBatch, widths: NDArray[np.int64]) -> DepthProfile:
        """The profile of the first w - 1 drafted nodes of each row, for each width w."""
        parents = absolute_parents(drafts)
        own = np.arange(len(parents))
        is_drafted = parents != own
        depths = path_sums(is_drafted.astype(np.int16), parents)
        num_depths = int(depths.max(initial=0)) + 1
        # Assignments in reverse order leave the first node: the first child of each parent here, and below the first
        # node of each depth in a row. A root is its own parent, so nodes are marked, not parents.
        first = np.empty(len(own), np.int64)
        first[parents[::-1]] = own[::-1]
        first[drafts.offsets[:-1]] = _first_drafted(drafts)
        kinds = (first.take(parents) == own).astype(np.int64)
        counts = np.diff(drafts.offsets)
        rows = np.repeat(np.arange(len(drafts)), counts)
        places = rows * num_depths + depths
        first = np.empty(len(drafts) * num_depths, np.int64)
        first[places[::-1]] = own[::-1]
        kinds += 2 * (first.take(places) == own)
        # The first width that has room for a node: the node's place in its row, 0 for the root, is below the width.
        columns = own - drafts.offsets[:-1].take(rows)
        tiers = np.searchsorted(widths, np.arange(int(counts.max(initial=1))) + 1).take(columns)
        cells = (tiers * num_depths + depths) * 4 + kinds
        counted = np.bincount(cells, minlength=(len(widths) + 1) * num_depths * 4)
        up_to = counted.reshape(len(widths) + 1, num_depths, 4).cumsum(axis=0)[:-1, 1:]
        nodes, with_children = up_to.sum(axis=2), up_to[:, :, 1] + up_to[:, :, 3]
        reached = up_to[:, :, 2] + up_to[:, :, 3]
        return DepthProfile(len(drafts), reached, np.maximum(nodes, 1) / np.maximum(with_children, 1))

    def expected(self, acceptances: NDArray[np.float64]) -> NDArray[np.float64]:
        """[w], tokens generated over the batch: each row by equation 10, with the mean breadth of each depth.

        Args:
            acceptances: Acceptance rate of one candidate at each depth. Deeper ones have the last rate.
        """
        depths = np.minimum(np.arange(self.rows.shape[1]), len(acceptances) - 1)
        some = 1.0 - (1.0 - acceptances[depths]) ** self.branches
        generated: NDArray[np.float64] = self.num_rows + (self.rows * some.cumprod(axis=1)).sum(axis=1)
        return generated


def _first_drafted(drafts: DraftBatch) -> NDArray[np.int64]:
    """[b], the node after each root. It is the root's first child if it belongs to the same row."""
    return drafts.offsets[:-1].astype(np.int64) + 1
