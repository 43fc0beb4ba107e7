"""The draft at every place of recorded or synthetic outputs, and how much of it is accepted.

The tokens that a step yields depend on how much it verifies, so runs of different widths draft at different places.
Therefore the draft of every place at which one may begin is kept:

    output     t1 t2 t3 t4          t1 comes from the prefill, a draft may begin behind t1, t2 and t3
    place         0  1  2           estimates[place]: root, best node, next best, ...
                                    accepted[place, k]: tokens accepted if the first k nodes are verified

An output's last token is never drafted, it is always a bonus token, as in agentspec.analysis.replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agentspec.drafts import DraftBatch, Source
from agentspec.errors import ConfigError

MAX_NODES = 127
"""Greatest number of nodes at a place, its root included. Counts and parents then fit into a byte."""


@dataclass(frozen=True, slots=True, eq=False)
class Acceptance:
    """n requests with m places in total and at most w nodes at each place, roots included. Raises ConfigError if shapes
    contradict each other."""

    name: str
    """The source of the requests, for people."""
    prompt_tokens: NDArray[np.int32]
    """[n], at least 1."""
    cached_tokens: NDArray[np.int32]
    """[n], number of tokens at a prompt's beginning that an earlier request of its session computed; fewer than the
    prompt has."""
    starts: NDArray[np.int64]
    """[n + 1]; request i has the places from starts[i] to starts[i + 1] - 1, and one output token more than places."""
    num_nodes: NDArray[np.uint8]
    """[m], number of nodes, root included, in [1, w]."""
    estimates: NDArray[np.float32]
    """[m, w], the probability that each node is accepted: 1 for roots, and 0 where there is no node."""
    parents: NDArray[np.int8]
    """[m, w], -1 for roots."""
    accepted: NDArray[np.uint8]
    """[m, w]; accepted[i, k] drafted tokens are accepted if the root and the first k other nodes are verified."""

    def __post_init__(self) -> None:
        m, w = self.estimates.shape
        if not (
            len(self.starts) == len(self.prompt_tokens) + 1 == len(self.cached_tokens) + 1
            and self.parents.shape == self.accepted.shape == (m, w)
            and self.num_nodes.shape == (m,)
            and (self.starts[0], self.starts[-1]) == (0, m)
            and 1 <= w <= MAX_NODES
        ):
            raise ConfigError(
                f"the arrays of an acceptance must fit each other, got {len(self.prompt_tokens)} requests and {m} places "
                f"of {w} nodes"
            )

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def output_tokens(self) -> NDArray[np.int64]:
        """[n]"""
        return np.diff(self.starts) + 1

    @property
    def max_width(self) -> int:
        """Greatest number of nodes of a draft, its root included."""
        return int(self.estimates.shape[1])

    def drafts(self, places: NDArray[np.int64], max_width: int | None = None, *, known: bool = False) -> DraftBatch:
        """The drafts of b places, cut to `max_width` nodes per row, roots included. Tokens are unknown and set to 0.

        `known`: estimates are 1 for the nodes that will be accepted and 0 for all others, as an oracle would have them.
        """
        width = self.max_width if max_width is None else min(max_width, self.max_width)
        counts = np.minimum(self.num_nodes[places], width).astype(np.int32)
        offsets = np.zeros(len(places) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        present = np.arange(width) < counts[:, None]
        estimates = self.estimates[places, :width]
        if known:
            true_nodes = np.diff(self.accepted[places, :width].astype(np.float32), axis=1)
            estimates = np.concatenate([np.ones((len(places), 1), np.float32), true_nodes], axis=1)
        kept = estimates[present]
        return DraftBatch(
            offsets=offsets,
            tokens=np.zeros(len(kept), np.int32),
            parents=self.parents[places, :width][present].astype(np.int32),
            estimates=kept,
            sources=np.full(len(kept), Source.REQUEST, np.uint8),
            match_lens=(counts > 1).astype(np.int32),
            scores=(estimates.sum(axis=1) - 1.0).astype(np.float32),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """The steps and drafts of serving recorded calls with one setting."""

    call_steps: NDArray[np.int64]
    """[calls]"""
    tokens: int
    drafted: int
    accepted: int
    drafting_steps: int
    """The number of steps with a draft above tau."""

    @property
    def steps(self) -> int:
        return int(self.call_steps.sum())

    @property
    def length(self) -> float:
        """Tokens per step, the bonus token included."""
        return self.tokens / max(self.steps, 1)


def walk(acceptance: Acceptance, width: int, tau: float) -> Walk:
    """Serves every request alone, with drafts of at most `width` nodes, root included, whose estimates promise more than
    `tau` accepted tokens."""
    width = min(width, acceptance.max_width)
    scores = acceptance.estimates[:, 1:width].sum(axis=1)
    nodes = np.minimum(acceptance.num_nodes.astype(np.int64), width) - 1
    nodes[scores <= tau] = 0
    accepted = acceptance.accepted[np.arange(len(nodes)), nodes].astype(np.int64)
    # A loop over plain integers, because each step of a call depends on the one before it.
    following = (np.arange(len(nodes)) + accepted + 1).tolist()
    steps: list[int] = []
    places: list[int] = []
    for first, end in pairwise(acceptance.starts.tolist()):
        before, place = len(places), first
        while place < end:
            places.append(place)
            place = following[place]
        steps.append(len(places) - before)
    drafted = nodes[places]
    return Walk(
        np.array(steps, np.int64),
        int(acceptance.starts[-1]),
        int(drafted.sum()),
        int(accepted[places].sum()),
        int((drafted > 0).sum()),
    )
