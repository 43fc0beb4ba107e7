"""What the chain needs of a model, and the OpenAI-compatible server that gives it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from agentspec.workflows.text_to_sql.prompts import Message

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@dataclass(frozen=True)
class Completion:
    """One greedy answer. `extra` holds the fields of the raw response that the OpenAI API does not define.

    `error` is set, and the text empty, where the call failed.
    """

    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    seconds: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)
    error: str = ""


class ChatModel(Protocol):
    """A chat model that decodes greedily."""

    async def complete(self, messages: Sequence[Message], max_tokens: int) -> Completion:
        """Answer the messages. Failures are returned in `Completion.error`, never raised."""
        ...


class OpenAIChat:
    """Chat completions of an OpenAI-compatible server, at temperature 0.

    `extra_body` is added to every request: what a server understands beyond the OpenAI API.
    """

    def __init__(self, client: AsyncOpenAI, model: str, extra_body: dict[str, Any] | None = None) -> None:
        self._client = client
        self._model = model
        self._extra_body = extra_body

    async def complete(self, messages: Sequence[Message], max_tokens: int) -> Completion:
        """Answer the messages; any error of the API, timeouts included, is returned."""
        from openai import OpenAIError

        start = time.perf_counter()
        try:
            response = await self._client.chat.completions.create(
                model=self._model,
                messages=list(messages),  # type: ignore[arg-type]
                temperature=0.0,
                max_tokens=max_tokens,
                extra_body=self._extra_body,
            )
        except OpenAIError as error:
            return Completion(error=f"{type(error).__name__}: {error}", seconds=time.perf_counter() - start)
        seconds = time.perf_counter() - start
        if not response.choices:
            return Completion(error="the response holds no choices", seconds=seconds)
        choice, usage = response.choices[0], response.usage
        extra = {**(response.model_extra or {}), **(choice.model_extra or {})}
        return Completion(
            text=choice.message.content or "",
            prompt_tokens=usage.prompt_tokens if usage else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
            finish_reason=choice.finish_reason,
            seconds=seconds,
            extra=extra,
        )
