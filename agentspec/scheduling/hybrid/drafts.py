"""The drafts of a hybrid step: the draft model's trees, and the trees to verify, made of these and suffix drafts.

suffix  0 ─┬─ a ── b        model  0 ─┬─ a ── d        merged  0 ─┬─ a ─┬─ b
           └─ c                       └─ e                        │     └─ d
                                                                  ├─ c
                                                                  └─ e

native/drafting/tree_union.h documents how both trees are merged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec.drafts import DraftBatch


@dataclass(frozen=True, slots=True, eq=False)
class ModelTrees:
    """The trees that the drafting loop of a draft model chose for the b rows of a batch.

    Candidates are numbered in the order in which they were drafted. Each group of `topk` consecutive candidates has the
    same parent; the first group's parent is the root. Rows that do not want the draft model's tree may hold any values.
    """

    parents: NDArray[np.int64]
    """[b, groups], the candidate that is the parent of each group; -1 for the root."""
    chosen: NDArray[np.int64]
    """[b, n], numbers of the candidates in the tree, ascending."""
    tokens: NDArray[np.int64]
    """[b, n], tokens of the chosen candidates."""
    estimates: NDArray[np.float32]
    """[b, n], the draft model's own probability of each chosen candidate: the product along its path."""
    topk: int
    """Number of candidates per group, >= 1."""

    def __len__(self) -> int:
        return len(self.chosen)


@dataclass(frozen=True, slots=True, eq=False)
class HybridBatch(DraftBatch):
    """The drafts to verify, and the draft model's own trees, from which observe() learns how good the draft model is.

    The batch owns its arrays: they stay valid as long as the batch exists.
    """

    model_offsets: NDArray[np.int32]
    """[b + 1]; the draft model's tree of row i has the nodes model_offsets[i] to model_offsets[i + 1]. Rows that did
    not want one have no nodes; all others have at least their root."""
    model_tokens: NDArray[np.int32]
    """[m]"""
    model_parents: NDArray[np.int32]
    """[m], numbers of the parents within the draft model's tree of the row; -1 for the root."""
    model_estimates: NDArray[np.float32]
    """[m], the draft model's own estimates, not calibrated; 1 for the root."""
    verified: NDArray[np.bool_]
    """[b], whether the draft model's tree is verified, alone or merged with the suffix draft."""
    alone: NDArray[np.bool_]
    """[b], whether the row is exactly the draft model's tree, node by node."""

    @property
    def ran(self) -> NDArray[np.bool_]:
        """[b], the rows for which the draft model drafted."""
        return np.diff(self.model_offsets) > 0

    def first(self, num_nodes: NDArray[np.int32]) -> HybridBatch:
        """See DraftBatch.first().

        A row that is the draft model's tree alone has that tree cut in the same way. In any other row that is cut, it
        is unknown which of the draft model's nodes remain, so its tree then counts as not verified.
        """
        cut = num_nodes < np.diff(self.offsets) - 1
        shortened = self.alone & (num_nodes > 0)
        sizes = np.diff(self.model_offsets)
        sizes = np.where(cut & shortened, np.minimum(sizes, num_nodes + 1), sizes)
        model_offsets, kept = _first_of_each(self.model_offsets, sizes)
        rows = DraftBatch.first(self, num_nodes)
        return HybridBatch(
            rows.offsets,
            rows.tokens,
            rows.parents,
            rows.estimates,
            rows.sources,
            rows.match_lens,
            rows.scores,
            model_offsets=model_offsets,
            model_tokens=self.model_tokens[kept],
            model_parents=self.model_parents[kept],
            model_estimates=self.model_estimates[kept],
            verified=self.verified & (shortened | ~cut),
            alone=self.alone & (shortened | ~cut),
        )

    def model_expected(self) -> NDArray[np.float64]:
        """[b], expected accepted tokens of the draft model's trees, by its own estimates; 0 where it did not draft."""
        ends = np.concatenate(([0.0], np.cumsum(self.model_estimates, dtype=np.float64)))[self.model_offsets]
        sums: NDArray[np.float64] = np.maximum(np.diff(ends) - 1.0, 0.0)
        return sums

    def model_followed(
        self, accepted: NDArray[np.int64], num_accepted: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """How far the text follows the draft model's own trees.

        Args:
            accepted: The first num_accepted[i] + 1 columns of row i hold its accepted tokens and the bonus token.
            num_accepted: int32[b], without the bonus token.

        Returns:
            int32[b], number of these tokens that the tree contains as a path from its root; and float64[b], expected
            tokens below the end of that path, if the text reaches it, by the tree's own estimates.

        Raises:
            ConfigError: Rows or columns are missing.
        """
        return _core.follow_paths(
            self.model_offsets,
            self.model_tokens,
            self.model_parents,
            self.model_estimates,
            accepted,
            num_accepted + np.int32(1),
        )


@dataclass(frozen=True, slots=True, eq=False)
class UnitedTrees:
    """What a device reports of b trees that it has made of suffix drafts and of a draft model's trees."""

    num_nodes: NDArray[np.int32]
    """[b], number of nodes of each tree, its root not counted."""
    model_first: NDArray[np.bool_]
    """[b], whether the tree's likeliest node is the draft model's."""
    verified: NDArray[np.bool_]
    """[b], whether the tree has all nodes of the draft model's tree."""
    model_tokens: NDArray[np.int32]
    """[b, 1 + n], the draft model's tree: a root, and n nodes in the order in which they were drafted; -1 in place of a
    token that was left out because it is not likely enough."""
    model_parents: NDArray[np.int32]
    """[b, 1 + n]; -1 for the root."""
    model_estimates: NDArray[np.float32]
    """[b, 1 + n], the draft model's own estimates, not calibrated; 0 for roots and for nodes that were left out."""

    def __len__(self) -> int:
        return len(self.num_nodes)

    def model_expected(self) -> NDArray[np.float64]:
        """See HybridBatch.model_expected()."""
        sums: NDArray[np.float64] = self.model_estimates.sum(axis=1, dtype=np.float64)
        return sums

    def model_followed(
        self, accepted: NDArray[np.int64], num_accepted: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """See HybridBatch.model_followed()."""
        rows, nodes = self.model_tokens.shape
        offsets = np.arange(0, (rows + 1) * nodes, nodes, dtype=np.int32)
        flat = self.model_tokens.ravel(), self.model_parents.ravel(), self.model_estimates.ravel()
        return _core.follow_paths(offsets, *flat, accepted, num_accepted + np.int32(1))


def _first_of_each(offsets: NDArray[np.int32], sizes: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Cuts row i to its first sizes[i] nodes. Returns the new offsets and the indices of the kept nodes."""
    kept_offsets = np.zeros(len(offsets), np.int32)
    np.cumsum(sizes, out=kept_offsets[1:])
    return kept_offsets, np.arange(kept_offsets[-1]) + np.repeat(offsets[:-1] - kept_offsets[:-1], sizes)
