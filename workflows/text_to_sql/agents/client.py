"""The interface to a model that agents need, and its implementation for an OpenAI-compatible server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from agentspec.workflows.text_to_sql.agents.prompts import Message

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion


@dataclass(frozen=True)
class Completion:
    """One answer. `extra` holds the fields of the raw response that the OpenAI API does not define.

    If the call failed, `error` is set and the text is empty.
    """

    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    seconds: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def verify_steps(self) -> int:
        """Number of steps that verified drafts, of SGLang with `return_spec_tokens_details` in the request; else 0."""
        found: Any = self.extra
        for name in ("sglext", "spec_tokens_details", "spec_verify_ct"):
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, int) else 0


class ChatModel(Protocol):
    """A chat model that decodes greedily."""

    async def complete(self, messages: Sequence[Message], max_tokens: int) -> Completion:
        """Answer the messages. Failures are returned in `Completion.error`, never raised."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a call samples its answer: greedily, or at a temperature above 0 with a seed that the server may use.

    `group` names the calls whose answers are much alike and are written at the same time; "" names none.
    """

    temperature: float = 0.0
    seed: int | None = None
    group: str = ""


GREEDY = Sampling()


class SamplingModel(Protocol):
    """A chat model that can draw several answers to the same messages."""

    async def complete(
        self, messages: Sequence[Message], max_tokens: int, *, sampling: Sampling = GREEDY
    ) -> Completion:
        """Answer the messages. Failures are returned in `Completion.error`, never raised."""
        ...


class OpenAIChat:
    """Chat completions of an OpenAI-compatible server, at temperature 0 unless a call says otherwise.

    `extra_body` holds fields beyond the OpenAI API that are added to every request, besides the fields of a single
    call. The client handles timeouts, retries and the pauses between them (`timeout`, `max_retries`).

    With `names_groups`, calls of a group tell agentspec which one, in `custom_params`, a field of SGLang. With `streams`,
    answers are streamed, so that a proxy sees when the first token comes.
    """

    def __init__(
        self,
        client: AsyncOpenAI,
        model: str,
        extra_body: dict[str, Any] | None = None,
        *,
        names_groups: bool = False,
        streams: bool = False,
    ) -> None:
        self._client = client
        self._model = model
        self._extra_body = extra_body
        self._names_groups = names_groups
        self._streams = streams

    async def complete(
        self,
        messages: Sequence[Message],
        max_tokens: int,
        *,
        sampling: Sampling = GREEDY,
        extra_body: Mapping[str, Any] | None = None,
    ) -> Completion:
        """Answer the messages. All errors of the API, timeouts included, are returned, and name the endpoint.
        `max_tokens`: maximum number of tokens of the answer. `extra_body`: additional fields of this request only, such
        as SGLang's `custom_params`."""
        import httpx
        from openai import OpenAIError

        body = {**(self._extra_body or {}), **(extra_body or {})}
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if self._names_groups and sampling.group:
            custom = dict(body.get("custom_params") or {})
            custom["agentspec"] = {**(custom.get("agentspec") or {}), "group": sampling.group}
            body["custom_params"] = custom
        start = time.perf_counter()
        try:
            response = await self._response(messages, max_tokens, sampling.temperature, body or None)
        except (
            OpenAIError,
            httpx.HTTPError,
            AssertionError,
            AttributeError,
            IndexError,
            TypeError,
            ValueError,
        ) as error:
            # A body that is not JSON raises ValueError. The client passes on what ends a stream early as it is, and asserts
            # that events have the fields which it needs.
            return self._failure(f"{type(error).__name__}: {error}", start)
        seconds = time.perf_counter() - start
        try:
            return _completion(response, seconds)
        except (AttributeError, TypeError, ValueError, IndexError):
            # The client builds its objects from any JSON, so the fields must be checked.
            return self._failure("the response is no chat completion", start)

    async def _response(
        self, messages: Sequence[Message], max_tokens: int, temperature: float, body: dict[str, Any] | None
    ) -> ChatCompletion:
        asked: dict[str, Any] = {
            "model": self._model,
            "messages": list(messages),
            "temperature": temperature,
            "max_tokens": max_tokens,
            "extra_body": body,
        }
        from openai import LengthFinishReasonError

        if not self._streams:
            whole: ChatCompletion = await self._client.chat.completions.create(**asked)
            return whole
        async with self._client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            try:
                answer = await stream.get_final_completion()
            except LengthFinishReasonError as cut:
                # The client would parse the answer, and takes one that was cut for an error.
                return cut.completion
        if answer.choices and answer.choices[0].finish_reason is None:
            raise ValueError("the stream ended before the answer did")
        return answer

    def _failure(self, reason: str, start: float) -> Completion:
        endpoint = self._client.base_url.copy_with(username=None, password=None, query=None)
        return Completion(error=f"{reason} ({endpoint})", seconds=time.perf_counter() - start)


def _completion(response: ChatCompletion, seconds: float) -> Completion:
    choice, usage = response.choices[0], response.usage
    if not isinstance(choice.message.content, str | None):
        raise TypeError("the content of a message must be text")
    extra = {**(response.model_extra or {}), **(choice.model_extra or {})}
    return Completion(
        text=choice.message.content or "",
        prompt_tokens=int(usage.prompt_tokens or 0) if usage else 0,
        completion_tokens=int(usage.completion_tokens or 0) if usage else 0,
        finish_reason=str(choice.finish_reason),
        seconds=seconds,
        extra=extra,
    )
