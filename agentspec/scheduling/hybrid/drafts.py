"""The drafts of a hybrid step: what the draft model proposed, and what is verified of that and of suffix drafts.

suffix  0 ─┬─ a ── b        model  0 ─┬─ a ── d        merged  0 ─┬─ a ─┬─ b
           └─ c                       └─ e                        │     └─ d
                                                                  ├─ c
                                                                  └─ e

native/drafting/tree_union.h says how both trees become one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec.drafts import DraftBatch


@dataclass(frozen=True, slots=True, eq=False)
class ModelTrees:
    """What the drafting loop of a draft model chose for the b rows of a batch.

    Candidates are numbered in the order they were drafted, in groups of `topk` that hang on the same parent. The first
    group hangs on the root. Rows that did not want the draft model's tree may hold anything.
    """

    parents: NDArray[np.int64]
    """[b, groups], the candidate that each group hangs on; -1 for the root."""
    chosen: NDArray[np.int64]
    """[b, n], numbers of the candidates in the tree, ascending."""
    tokens: NDArray[np.int64]
    """[b, n], their tokens."""
    estimates: NDArray[np.float32]
    """[b, n], the draft model's own probability of each: the product along its path."""
    topk: int
    """Candidates a group, >= 1."""

    def __len__(self) -> int:
        return len(self.chosen)


@dataclass(frozen=True, slots=True, eq=False)
class HybridBatch(DraftBatch):
    """The drafts to verify, and what the draft model proposed for them, which observe() judges it by.

    Its arrays are its own: they stay valid as long as it does.
    """

    model_offsets: NDArray[np.int32]
    """[b + 1]; row i's own tree of the draft model has the nodes model_offsets[i] to model_offsets[i + 1]. Rows that did
    not want one have none, all others their root at least."""
    model_tokens: NDArray[np.int32]
    """[m]"""
    model_parents: NDArray[np.int32]
    """[m], numbered within the row's tree of the draft model; -1 for the root."""
    model_estimates: NDArray[np.float32]
    """[m], the draft model's own, not calibrated; 1 for the root."""
    verified: NDArray[np.bool_]
    """[b], whether the draft model's tree is among what is verified: alone, or merged with the suffix draft."""
    alone: NDArray[np.bool_]
    """[b], whether the row is the draft model's tree and nothing else, node by node."""

    @property
    def ran(self) -> NDArray[np.bool_]:
        """[b], the rows for which the draft model drafted."""
        return np.diff(self.model_offsets) > 0

    def first(self, num_nodes: NDArray[np.int32]) -> HybridBatch:
        """See DraftBatch.first().

        A row of the draft model alone keeps as much of its tree. Of other rows that are cut nobody knows what is left of
        the draft model's tree, which then counts as not verified.
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
        """[b], accepted tokens that the draft model promises, by its own estimates; 0 where it did not draft."""
        ends = np.concatenate(([0.0], np.cumsum(self.model_estimates, dtype=np.float64)))[self.model_offsets]
        sums: NDArray[np.float64] = np.maximum(np.diff(ends) - 1.0, 0.0)
        return sums

    def model_accepted(self, accepted: NDArray[np.int64], num_accepted: NDArray[np.int32]) -> NDArray[np.int32]:
        """[b], tokens of the text that the draft model's own trees have as a path from their roots.

        Args:
            accepted: [b, w], in the first num_accepted[i] + 1 columns of row i its accepted tokens and the bonus token.
            num_accepted: [b], bonus tokens not counted.

        Raises:
            ConfigError: `accepted` lacks rows or columns.
        """
        return _core.path_lengths(
            self.model_offsets, self.model_tokens, self.model_parents, accepted, num_accepted + np.int32(1)
        )


def _first_of_each(offsets: NDArray[np.int32], sizes: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The offsets of rows of these sizes, and which nodes they are, the first ones of each row."""
    kept_offsets = np.zeros(len(offsets), np.int32)
    np.cumsum(sizes, out=kept_offsets[1:])
    return kept_offsets, np.arange(kept_offsets[-1]) + np.repeat(offsets[:-1] - kept_offsets[:-1], sizes)
