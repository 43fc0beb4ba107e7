"""A brute-force oracle of the engine: SuffixDecoding's algorithm 1, with counts taken from the texts themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentspec import EngineConfig, Source


@dataclass
class Tree:
    """A draft. Node 0 is the root; its token is the request's last token."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    estimates: list[float] = field(default_factory=lambda: [1.0])
    source: Source = Source.ROOT
    match_len: int = 0
    score: float = 0.0


END = -1
"""Marks the end of a finished output. It counts as a continuation but is never drafted."""

Continuations = dict[int, tuple[int, tuple[int, int]]]  # token -> (count, last place), where a place is (text, end)


def continuations(texts: Sequence[Sequence[int]], string: Sequence[int]) -> Continuations:
    """Counts how often each token follows the string, and finds the last place. Later texts are more recent."""
    found: Continuations = {}
    for number, text in enumerate(texts):
        for start in range(len(text) - len(string)):
            end = start + len(string)
            if list(text[start:end]) == list(string):
                found[text[end]] = (found.get(text[end], (0,))[0] + 1, (number, end))
    return found


def grow(config: EngineConfig, texts: Sequence[Sequence[int]], pattern: Sequence[int], size: int) -> Tree:
    """Grows the tree of one pattern in one source, one node at a time, by the best estimate."""
    tree = Tree([pattern[-1]], match_len=len(pattern))
    strings = [list(pattern)]
    candidates: list[tuple[float, tuple[int, int], int, int]] = []
    while len(tree.tokens) <= size:
        parent = len(tree.tokens) - 1
        found = continuations(texts, strings[parent])
        total = sum(count for count, _ in found.values())
        if config.mode == "chain":
            candidates = []
        for token, (count, place) in found.items():
            if token == END:
                continue
            candidates.append((tree.estimates[parent] * (count / total), place, -parent, token))
        candidates = [candidate for candidate in candidates if candidate[0] >= config.min_token_prob]
        if not candidates:
            break
        best = max(candidates)
        candidates.remove(best)
        estimate, _, negative_parent, token = best
        tree.tokens.append(token)
        tree.parents.append(-negative_parent)
        tree.estimates.append(estimate)
        tree.score += estimate
        strings.append([*strings[-negative_parent], token])
    return tree


def draft(config: EngineConfig, text: Sequence[int], outputs: Sequence[Sequence[int]], cap: int | None) -> Tree:
    """The draft for a request with this text, whose namespace has these outputs, oldest first."""
    ended = [[*output, END] for output in outputs]
    cap = config.max_draft_tokens if cap is None else min(cap, config.max_draft_tokens)
    best = Tree([text[-1]])
    for length in range(min(config.max_pattern, len(text)), 0, -1):
        for source, texts in ((Source.REQUEST, [text]), (Source.GLOBAL, ended)):
            tree = grow(config, texts, text[-length:], min(cap, math.floor(config.alpha * length)))
            if tree.score > best.score:
                best = tree
                best.source = source
    return best
