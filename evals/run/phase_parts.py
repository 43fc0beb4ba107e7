"""What servers are asked: phases of streams of agents' questions and open prompts, in slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from agentspec.workflows.text_to_sql import Message, Question

Kind = Literal["agents", "open"]
KINDS: tuple[Kind, ...] = ("agents", "open")
CALLS_A_QUESTION = 3
"""Calls that the chain of agents makes for a question, on average."""

Prompt = tuple[Message, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stream:
    """Work of one kind, `concurrency` questions or prompts at a time."""

    concurrency: int
    questions: tuple[Question, ...] = ()
    prompts: tuple[Prompt, ...] = ()

    @property
    def kind(self) -> Kind:
        return "agents" if self.questions else "open"

    @property
    def requests(self) -> int:
        """About so many model calls."""
        return len(self.questions) * CALLS_A_QUESTION + len(self.prompts)

    def part(self, i: int, of: int) -> Stream:
        """The i-th of so many parts."""

        def cut(work: tuple[T, ...]) -> tuple[T, ...]:
            return work[len(work) * i // of : len(work) * (i + 1) // of]

        return Stream(self.concurrency, cut(self.questions), cut(self.prompts))


@dataclass(frozen=True, slots=True)
class Phase:
    """Streams that run at the same time; `row` names what they are reported as, "" for none."""

    row: str
    streams: tuple[Stream, ...]
    flush: bool = False

    def slices(self, size: int) -> list[tuple[Stream, ...]]:
        """The streams in turns of about `size` requests of each, so that servers can be asked turn by turn."""
        number = max(1, round(max(stream.requests for stream in self.streams) / size))
        return [tuple(stream.part(i, number) for stream in self.streams) for i in range(number)]
