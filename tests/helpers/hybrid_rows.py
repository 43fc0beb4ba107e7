"""Rows of drafts with estimates and sources, and trees of a draft model, for tests of the hybrid policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentspec import DraftBatch
from agentspec.scheduling.hybrid import ModelTrees


class Tree(NamedTuple):
    """A row as lists of n nodes: the root first, and parents before their children."""

    tokens: list[int]
    parents: list[int]
    """Indices of the parents; -1 for the root."""
    estimates: list[float]
    """The probability that each node is accepted; 1 for the root."""
    sources: list[int]
    """Values of `Source`."""


def chain(tokens: Sequence[int], estimates: Sequence[float], source: int = 1, root: int = 0) -> Tree:
    """Makes a chain of nodes below the root."""
    n = len(tokens) + 1
    return Tree([root, *tokens], list(range(-1, n - 1)), [1.0, *estimates], [0, *[source] * (n - 1)])


def batch(rows: Sequence[Tree], match_lens: Sequence[int] | None = None) -> DraftBatch:
    """Makes a batch of the rows, as an engine returns it."""
    return DraftBatch(
        offsets=np.cumsum([0, *(len(row.tokens) for row in rows)], dtype=np.int32),
        tokens=np.array([x for row in rows for x in row.tokens], np.int32),
        parents=np.array([x for row in rows for x in row.parents], np.int32),
        estimates=np.array([x for row in rows for x in row.estimates], np.float32),
        sources=np.array([x for row in rows for x in row.sources], np.uint8),
        match_lens=np.array(match_lens if match_lens is not None else [len(r.tokens) - 1 for r in rows], np.int32),
        scores=np.array([sum(row.estimates) - 1.0 for row in rows], np.float32),
    )


def model_trees(rows: Sequence[Tree]) -> ModelTrees:
    """Makes trees of the rows, as chosen by a drafting loop with one candidate per group.

    No estimate may exceed its parent's. Rows are padded with candidates whose estimate is too low to be used.
    """
    n = max((len(row.tokens) - 1 for row in rows), default=0)
    parents = np.full((len(rows), n), -1, np.int64)
    tokens = np.zeros((len(rows), n), np.int64)
    estimates = np.full((len(rows), n), -1.0, np.float32)
    for i, row in enumerate(rows):
        size = len(row.tokens) - 1
        parents[i, :size] = np.array(row.parents[1:], np.int64) - 1
        tokens[i, :size] = row.tokens[1:]
        estimates[i, :size] = row.estimates[1:]
    return ModelTrees(parents, np.tile(np.arange(n), (len(rows), 1)), tokens, estimates, topk=1)


def random_loop(rng: np.random.Generator, rows: int, topk: int, steps: int, vocab: int, max_nodes: int) -> ModelTrees:
    """What a drafting loop chooses: in each step the best `topk` of the candidates are gone on with."""
    shape: list[NDArray[Any]] = []
    for _ in range(rows):
        if rng.random() < 0.3:
            first = rng.choice([0.25, 0.5], topk)
        else:
            first = np.sort(rng.random(topk))[::-1]
        scores = [first.astype(np.float32)]
        parents = [np.arange(-1, topk)]
        kept, places = first.astype(np.float32), np.arange(topk)
        for step in range(1, steps):
            shares = rng.choice([0.25, 0.5, 1.0], (topk, topk)) if rng.random() < 0.3 else rng.random((topk, topk))
            grown = (kept[:, None] * shares.astype(np.float32)).reshape(-1)
            begins = topk + (step - 1) * topk * topk
            best = np.argsort(-grown, kind="stable")[:topk]
            scores.append(grown)
            kept, places = grown[best], begins + best
            parents.append(places)
        all_scores = np.concatenate(scores)
        chosen = np.sort(np.argsort(-all_scores, kind="stable")[:max_nodes])
        tokens = rng.integers(0, vocab, len(all_scores))
        groups = np.concatenate(parents[:-1]) if steps > 1 else np.zeros(0, np.int64)
        shape.append(np.array([groups, chosen, tokens[chosen], all_scores[chosen]], dtype=object))
    parents_, chosen_, tokens_, estimates_ = (np.stack([row[k] for row in shape]) for k in range(4))
    return ModelTrees(
        parents_.astype(np.int64),
        chosen_.astype(np.int64),
        tokens_.astype(np.int64),
        estimates_.astype(np.float32),
        topk,
    )
