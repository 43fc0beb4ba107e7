"""Sends the requests of `agentspec bench parity` and keeps what is compared of each answer."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from agentspec.errors import ServerError
from agentspec.evals.clients.client import Client
from agentspec.evals.parity.requests import Ask, Round
from agentspec.integrations.servers.server import RunningServer

ANSWER_SECONDS = 300.0
"""A server that takes longer for one answer hangs. The longest answer takes a few seconds, or a minute on a busy
machine."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer; a request for several choices has several."""

    tokens: tuple[int, ...]
    text: str
    finish_reason: dict[str, Any]
    completion_tokens: int
    logprobs: tuple[tuple[float | None, int], ...] = ()
    """Pairs of log probability and token id: of the output, of its most likely tokens, and of the prompt, one after the
    other."""
    cached_tokens: int = 0
    verify_steps: int = 0
    accepted_tokens: int = 0
    """Drafted tokens that were accepted; 0 if the server does not say."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a request."""

    status: int
    """Of HTTP; 0 if the client hung up."""
    choices: tuple[Choice, ...] = ()
    note: str = ""
    """A fault of the answer itself; "" if there is none."""


class ParityClient(Client):
    """Sends the requests; an asynchronous context manager."""

    def __init__(self, url: str, *, seconds: float = ANSWER_SECONDS) -> None:
        super().__init__(url, seconds=seconds, force_close=True)

    async def ask(self, ask: Ask, on_event: Callable[[], object] = lambda: None) -> Answer:
        """Sends a request.

        Args:
            on_event: Called at each event of a streamed answer.

        Raises:
            ServerError: There was no answer in time, or the connection broke.
        """
        import aiohttp

        body = {**ask.body, "stream": True} if ask.is_streamed else ask.body
        try:
            async with self.session.post(f"{self.url}/generate", json=body) as response:
                if response.status != 200:
                    return Answer(response.status)
                if ask.is_streamed:
                    return await _streamed(response, on_event)
                reply = await response.json()
        except TimeoutError as error:
            raise ServerError(
                f"a request ({ask.kind}) got no answer within {self._seconds:.0f} s: the server hangs"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerError(f"a request ({ask.kind}) failed: {type(error).__name__}: {error}") from error
        return Answer(200, tuple(map(_choice, reply if isinstance(reply, list) else [reply])))

    async def abort(self, rid: str) -> None:
        """Has the server abort the request `rid`."""
        async with self.session.post(f"{self.url}/abort_request", json={"rid": rid}) as response:
            await response.read()


async def _streamed(response: Any, on_event: Callable[[], object]) -> Answer:
    """The answer from the last event of a stream, each of whose events repeats the answer so far."""
    last: dict[str, Any] = {}
    before: list[int] = []
    note = ""
    async for line in response.content:
        if not line.startswith(b"data: {"):
            continue
        last = json.loads(line[len(b"data: ") :])
        if "error" in last:
            return Answer(int(last["error"].get("code", 500)))
        on_event()
        if last["output_ids"][: len(before)] != before:
            note = "an event of the stream takes back tokens of an earlier one"
        before = last["output_ids"]
    if not last:
        return Answer(200, note="the stream ended without an event")
    status = (last["meta_info"]["finish_reason"] or {}).get("status_code")
    if status is not None and status != 200:
        # SGLang streams a refusal with a token that the model did not write.
        return Answer(int(status))
    return Answer(200, (_choice(last),), note)


def _choice(reply: dict[str, Any]) -> Choice:
    meta = reply["meta_info"]
    names = ("output_token_logprobs", "output_top_logprobs", "input_token_logprobs", "input_top_logprobs")
    return Choice(
        tokens=tuple(reply["output_ids"]),
        text=reply["text"],
        finish_reason=meta["finish_reason"] or {},
        completion_tokens=int(meta["completion_tokens"]),
        logprobs=tuple(_pairs([meta.get(name) or () for name in names])),
        cached_tokens=int(meta.get("cached_tokens", 0)),
        verify_steps=int(meta.get("spec_verify_ct", 0)),
        accepted_tokens=int(meta.get("spec_num_correct_drafts", 0)),
    )


def _pairs(value: Sequence[Any]) -> list[tuple[float | None, int]]:
    """The innermost lists of nested lists, each of which is a log probability, a token id and its text."""
    if len(value) == 3 and isinstance(value[1], int):
        return [(value[0], value[1])]
    return [pair for part in value if part is not None for pair in _pairs(part)]


async def ask_round(client: ParityClient, round_: Round, seed: int) -> list[Answer]:
    """The answers to a round, in the order of its requests.

    Raises:
        ServerError: A request got no answer.
    """
    answers: list[Answer | None] = [None] * len(round_.asks)
    waiting = iter(range(len(round_.asks)))

    async def one(number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        for place in waiting:
            if round_.gap:
                await asyncio.sleep(rng.expovariate(1 / round_.gap))
            answers[place] = await client.ask(round_.asks[place])

    await together([one(number) for number in range(round_.clients)])
    return [answer for answer in answers if answer is not None]


def ask(server: RunningServer, round_: Round, seed: int, *, seconds: float = ANSWER_SECONDS) -> list[Answer]:
    """The answers of a server to a round; raises ServerError if a request got none."""

    async def asked() -> list[Answer]:
        async with ParityClient(server.url, seconds=seconds) as client:
            return await ask_round(client, round_, seed)

    return asyncio.run(asked())


async def together(tasks: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Runs the tasks. The first error cancels the other tasks and is raised."""
    running = [asyncio.create_task(task) for task in tasks]
    try:
        await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
