"""The form of a recorded answer on its way from the launcher to the schedulers.

SGLang transports a request's custom_params as strings, numbers and flat lists. So an answer is one list of integers:
the token that ends it, then its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIRE_KEY = "agentspec_replay"


@dataclass(frozen=True, slots=True)
class ForcedAnswer:
    """The answer that the target must write after the prompt."""

    tokens: tuple[int, ...]
    end: int
    """The token that is forced at every position after `tokens`."""

    def matches(self, output: Sequence[int]) -> bool:
        """Whether an output is this answer, or the beginning of it."""
        n = min(len(output), len(self.tokens))
        return tuple(output[:n]) == self.tokens[:n] and all(token == self.end for token in output[n:])


def packed(tokens: Sequence[int], end: int) -> list[int]:
    return [end, *tokens]


def unpacked(custom_params: object) -> ForcedAnswer | None:
    """The answer in a request's custom_params, or None."""
    wire = custom_params.get(WIRE_KEY) if isinstance(custom_params, Mapping) else None
    if not isinstance(wire, list) or not wire:
        return None
    return ForcedAnswer(tuple(wire[1:]), wire[0])
