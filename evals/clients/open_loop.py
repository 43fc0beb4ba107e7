"""Requests that are sent at given times, whatever became of earlier ones; and the calls that they repeat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ServerError
from agentspec.evals.research.tiny_sql.open_chat import OPEN_MAX_TOKENS
from agentspec.evals.run.phases import Kind
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import RunningServer
from agentspec.workflows.text_to_sql import (
    ChainConfig,
    ChatModel,
    Completion,
    Database,
    Message,
    OpenAIChat,
    Question,
    answer_questions,
)


@dataclass(frozen=True, slots=True, eq=False)
class AskedCall:
    """A prompt, and how many tokens its answer had and is to have again."""

    kind: Kind
    prompt: tuple[int, ...]
    output_tokens: int

    def body(self) -> dict[str, Any]:
        """The body of a POST to /generate."""
        sampling = {"temperature": 0, "max_new_tokens": self.output_tokens, "ignore_eos": True}
        return {"input_ids": list(self.prompt), "sampling_params": sampling}


class Sent(Protocol):
    """A call that can be sent."""

    def body(self) -> dict[str, Any]:
        """The body of a POST to /generate."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """What became of a request; seconds since the first one was due."""

    sent: float
    answered: float
    cached_tokens: int
    output: NDArray[np.int32]
    verify_steps: int
    """0 where the server does not verify."""

    @property
    def seconds(self) -> float:
        return self.answered - self.sent


def ask_calls(
    server: RunningServer,
    questions: Sequence[Question],
    prompts: Sequence[Sequence[Message]],
    databases: Mapping[Database, Path],
    concurrency: int,
) -> list[AskedCall]:
    """Has a server answer agents' questions and open prompts, and keeps each call in the order of the answers.

    Calls whose answer is a single token are left out, for nothing of them is decoded.

    Raises:
        ServerError: A call failed.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(MODEL_FOLDER)
    found: list[AskedCall] = []

    async def ask() -> None:
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120.0) as client:
            chat = OpenAIChat(client, MODEL_FOLDER.name)
            gate = asyncio.Semaphore(concurrency)

            async def one(messages: Sequence[Message]) -> None:
                async with gate:
                    await _Keeper(chat, "open", tokenizer, found).complete(messages, OPEN_MAX_TOKENS)

            config = ChainConfig(concurrency=concurrency)
            await answer_questions(_Keeper(chat, "agents", tokenizer, found), questions, dict(databases), config)
            await asyncio.gather(*(one(messages) for messages in prompts))

    asyncio.run(ask())
    return [call for call in found if call.output_tokens > 1]


class _Keeper:
    """A chat model that keeps what it is asked."""

    def __init__(self, model: ChatModel, kind: Kind, tokenizer: Any, found: list[AskedCall]) -> None:
        self._model, self._kind, self._tokenizer, self._found = model, kind, tokenizer, found

    async def complete(self, messages: Sequence[Message], max_tokens: int) -> Completion:
        completion = await self._model.complete(messages, max_tokens)
        if completion.error:
            raise ServerError(f"a call failed: {completion.error}")
        text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        prompt = tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        self._found.append(AskedCall(self._kind, prompt, completion.completion_tokens))
        return completion


def send_at(
    server: RunningServer,
    calls: Sequence[AskedCall],
    times: Sequence[float],
    on_answer: Callable[[], object] = lambda: None,
) -> list[Answered]:
    """Sends each call at its time, in seconds from now on, ascending; the answers in the order of the calls.

    Answers have just as many tokens as they are to have, and end early for nothing.
    """
    with ThreadPoolExecutor(len(calls)) as pool:
        begin = time.perf_counter()
        asked = []
        for call, due in zip(calls, times, strict=True):
            time.sleep(max(0.0, begin + due - time.perf_counter()))
            asked.append(pool.submit(_ask, server, call, begin, on_answer))
        return [future.result() for future in asked]


def send_closed(server: RunningServer, calls: Sequence[Sent], clients: int) -> list[Answered]:
    """Sends the calls in their order, so many at a time."""
    with ThreadPoolExecutor(clients) as pool:
        begin = time.perf_counter()
        return list(pool.map(lambda call: _ask(server, call, begin, lambda: None), calls))


def _ask(server: RunningServer, call: Sent, begin: float, on_answer: Callable[[], object]) -> Answered:
    body = call.body()
    sent = time.perf_counter() - begin
    reply = server.post("/generate", body)
    answered = time.perf_counter() - begin
    on_answer()
    meta = reply["meta_info"]
    return Answered(
        sent=sent,
        answered=answered,
        cached_tokens=int(meta.get("cached_tokens", 0)),
        output=np.array(reply["output_ids"], np.int32),
        verify_steps=int(meta.get("spec_verify_ct", 0)),
    )
