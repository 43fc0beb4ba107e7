"""The calls that agents make for one question."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from agentspec.workflows.text_to_sql.agents.client import Completion
from agentspec.workflows.text_to_sql.agents.prompts import Message


@dataclass(frozen=True)
class Call:
    """One request of an agent and its answer. `began` is in seconds since the work on the question began."""

    stage: str
    messages: tuple[Message, ...]
    completion: Completion
    began: float = 0.0


class CallFailed(Exception):
    """A call of the model failed. Carries the stage and the error text."""


class Transcript:
    """Keeps the calls in the order in which they ended."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.calls: list[Call] = []

    @property
    def seconds(self) -> float:
        """Seconds since the work on the question began."""
        return time.perf_counter() - self._start

    @property
    def truncated(self) -> bool:
        """True if the token limit cut an answer."""
        return any(call.completion.finish_reason == "length" for call in self.calls)

    async def ask(self, stage: str, messages: Sequence[Message], answer: Awaitable[Completion]) -> str:
        """Await the answer to the messages, keep it and return its text. Raises CallFailed if the completion carries an
        error."""
        began = self.seconds
        completion = await answer
        self.calls.append(Call(stage, tuple(messages), completion, began))
        if completion.error:
            raise CallFailed(f"{stage}: {completion.error}")
        return completion.text

    def model_seconds(self) -> float:
        """Seconds in which at least one call was in progress."""
        total = ended = 0.0
        for began, end in sorted((call.began, call.began + call.completion.seconds) for call in self.calls):
            total += max(0.0, end - max(began, ended))
            ended = max(ended, end)
        return total
