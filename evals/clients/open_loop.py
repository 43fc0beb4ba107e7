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

from agentspec.evals.run.phases import Kind, Prompt, Stream, WatchedChat, run_stream, small_model
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import RunningServer
from agentspec.workflows.text_to_sql import (
    Completion,
    Database,
    Message,
    Question,
)


@dataclass(frozen=True, slots=True, eq=False)
class AskedCall:
    """A prompt, and the number of tokens that its answer had and is to have again."""

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
    """The result of a request; seconds since the first one was due."""

    sent: float
    answered: float
    cached_tokens: int
    output: NDArray[np.int32]
    verify_steps: int
    """0 if the server does not verify."""

    @property
    def seconds(self) -> float:
        return self.answered - self.sent


def ask_calls(
    server: RunningServer,
    questions: Sequence[Question],
    prompts: Sequence[Prompt],
    databases: Mapping[Database, Path],
    concurrency: int,
) -> list[AskedCall]:
    """Has a server answer agents' questions and open prompts, and keeps each call in the order of the answers.

    Calls whose answer is a single token are left out, because none of their tokens is decoded.

    Raises:
        ServerError: A call failed.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(MODEL_FOLDER)
    found: list[AskedCall] = []

    def note(kind: Kind) -> Callable[[Sequence[Message], Completion, float], None]:
        def keep(messages: Sequence[Message], completion: Completion, began: float) -> None:
            text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
            prompt = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
            found.append(AskedCall(kind, prompt, completion.completion_tokens))

        return keep

    async def ask() -> None:
        async with small_model(server) as model:
            for stream in (
                Stream(concurrency, questions=tuple(questions)),
                Stream(concurrency, prompts=tuple(prompts)),
            ):
                await run_stream(WatchedChat(model, "the plain server", note(stream.kind)), stream, databases)

    asyncio.run(ask())
    return [call for call in found if call.output_tokens > 1]


def send_at(
    server: RunningServer,
    calls: Sequence[AskedCall],
    times: Sequence[float],
    on_answer: Callable[[], object] = lambda: None,
) -> list[Answered]:
    """Sends each call at its time, in ascending seconds from now; the answers are in the order of the calls.

    Answers have exactly the required number of tokens and never end early.
    """
    with ThreadPoolExecutor(len(calls)) as pool:
        begin = time.perf_counter()
        asked = []
        for call, due in zip(calls, times, strict=True):
            time.sleep(max(0.0, begin + due - time.perf_counter()))
            asked.append(pool.submit(_ask, server, call, begin, on_answer))
        return [future.result() for future in asked]


def send_closed(server: RunningServer, calls: Sequence[Sent], clients: int) -> list[Answered]:
    """Sends the calls in order, `clients` at a time."""
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
