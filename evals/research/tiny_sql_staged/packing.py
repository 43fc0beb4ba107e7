"""Calls with common beginnings in one sequence: a tree of segments, in which a token sees its ancestors and no others.

All calls on a database begin with the same system message, and the drafts of a question with nearly the same prompt. Each
common beginning is computed once.

    system ─┬─ classify, question 1 ── answer
            ├─ draft, question 1, features ─┬─ first approach ── answer
            │                               └─ second approach ── answer
            └─ ...
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

NO_TARGET = -100


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of one call. `weight` is that of its answer's tokens in the loss."""

    stage: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    weight: float = 1.0


@dataclass(slots=True)
class Pack:
    """Trees of segments, laid out one segment after another.

    `chains[i]` holds the numbers of the segments that segment i sees, itself last. `owners[i]` is the example whose
    answer the segment holds, None for a shared segment.
    """

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    chains: list[tuple[int, ...]] = field(default_factory=list)
    owners: list[Example | None] = field(default_factory=list)

    def add(self, examples: Sequence[Example]) -> None:
        """Add a tree with these calls. Of calls with the same prompt only the last one is kept."""
        unique = {example.prompt: example for example in examples}
        self._grow(list(unique.values()), 0, ())

    def _grow(self, examples: list[Example], depth: int, chain: tuple[int, ...]) -> None:
        if len(examples) == 1:
            self._leaf(examples[0], depth, chain)
            return
        # The last token of a prompt stays with its answer, whose first token it predicts.
        longest = min(len(example.prompt) for example in examples) - 1
        first, end = examples[0].prompt, depth
        while end < longest and all(example.prompt[end] == first[end] for example in examples):
            end += 1
        if end > depth:
            chain = (*chain, len(self.lengths))
            nothing = [NO_TARGET] * (end - depth)
            self._segment(first[depth:end], depth, nothing, 0.0, chain, None)
        groups: dict[int, list[Example]] = defaultdict(list)
        for example in examples:
            groups[example.prompt[end]].append(example)
        for group in groups.values():
            if len(groups) > 1 or end > depth:
                self._grow(group, end, chain)
                continue
            for example in group:
                self._leaf(example, end, chain)

    def _leaf(self, example: Example, depth: int, chain: tuple[int, ...]) -> None:
        tokens = (*example.prompt[depth:], *example.answer[:-1])
        targets = [NO_TARGET] * (len(example.prompt) - depth - 1) + list(example.answer)
        self._segment(tokens, depth, targets, example.weight, (*chain, len(self.lengths)), example)

    def _segment(
        self,
        tokens: Sequence[int],
        depth: int,
        targets: list[int],
        weight: float,
        chain: tuple[int, ...],
        owner: Example | None,
    ) -> None:
        self.tokens += tokens
        self.positions += range(depth, depth + len(tokens))
        self.targets += targets
        self.weights += [weight] * len(tokens)
        self.lengths.append(len(tokens))
        self.chains.append(chain)
        self.owners.append(owner)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Tokens, positions, targets and weights, each [length]."""
        return (
            torch.tensor(self.tokens),
            torch.tensor(self.positions),
            torch.tensor(self.targets),
            torch.tensor(self.weights),
        )
