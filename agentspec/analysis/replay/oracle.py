"""The upper bound of drafting by copying.

At each step the oracle drafts the longest text that comes next in the output and occurred before in any prompt or
output seen so far, its own included. No context has to match, and the oracle knows the right occurrence. Therefore no
drafter that copies one text per step accepts more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay.teacher_forcing import Draft
from agentspec.analysis.replay.traces import Call


def longest_copies(text: NDArray[np.int64], max_length: int) -> NDArray[np.int32]:
    """int32[m]: for each position p of the text, int64[m], the largest n <= max_length such that text[p:p+n] occurs
    within text[:p]."""
    # ranks[i] numbers the n-gram at positions[i]. Positions with a unique n-gram have been dropped, since no longer
    # n-gram that begins there can repeat either.
    longest = np.zeros(len(text), dtype=np.int32)
    symbols = np.unique(text, return_inverse=True)[1].reshape(-1)
    positions = np.arange(len(text))
    ranks = np.zeros(len(text), dtype=np.int64)
    for n in range(1, max_length + 1):
        inside = positions + n <= len(text)
        positions, ranks = positions[inside], ranks[inside]
        keys = ranks * len(text) + symbols[positions + n - 1]
        _, first, ranks, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        ranks = ranks.reshape(-1)
        copied = positions[first][ranks] + n <= positions
        longest[positions[copied]] = n
        repeated = counts[ranks] > 1
        positions, ranks = positions[repeated], ranks[repeated]
        if not len(positions):
            break
    return longest


class Oracle:
    """A system that gets all calls in advance, those to remember first. They must be replayed in that order."""

    def __init__(self, calls: Sequence[Call], max_draft_tokens: int) -> None:
        self._text, self._starts = _lay_out(calls)
        self._longest = longest_copies(self._text, max_draft_tokens)
        # The last token of each output is always a bonus token, so no draft reaches it.
        self._lasts = [start + len(call.output) - 1 for start, call in zip(self._starts, calls, strict=True)]
        self._call = self._position = -1

    def remember(self, call: Call) -> None:
        self._call += 1

    def open(self, prompt: NDArray[np.int32]) -> None:
        self._call += 1
        self._position = self._starts[self._call]

    def extend(self, tokens: NDArray[np.int32]) -> None:
        self._position += len(tokens)

    def draft(self, max_tokens: int) -> tuple[int, int]:
        left = self._lasts[self._call] - self._position
        return self._position, min(max_tokens, left, int(self._longest[self._position]))

    def tree(self, drafted: tuple[int, int]) -> Draft:
        begin, length = drafted
        return Draft(self._text[begin : begin + length].tolist(), range(-1, length - 1))

    def close(self) -> None:
        pass


def _lay_out(calls: Sequence[Call]) -> tuple[NDArray[np.int64], list[int]]:
    """Joins all calls to one text, and returns the start of each output in it.

    Of a prompt that continues the previous call's prompt and output, only the new part is added. Any other prompt
    follows a unique symbol, so that no copy spans two texts.
    """
    parts: list[NDArray[np.int32]] = []
    starts: list[int] = []
    length = 0
    before: tuple[int, ...] = ()
    for i, call in enumerate(calls):
        identities = tuple(map(id, call.prompt_parts))
        if before and identities[: len(before)] == before:
            pieces = list(call.prompt_parts[len(before) :])
        else:
            pieces = [np.array([-1 - i], dtype=np.int32), *call.prompt_parts]
        starts.append(length + sum(map(len, pieces)))
        pieces.append(call.output)
        length += sum(map(len, pieces))
        parts += pieces
        before = (*identities, id(call.output))
    return np.concatenate(parts).astype(np.int64), starts
