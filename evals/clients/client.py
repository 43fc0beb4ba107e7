"""Requests to a server under evaluation: streamed, timed, as token ids.

Every request goes to `/generate`. That includes the calls of the agents' chain, whose messages are rendered here, so
that all systems get the same token ids and outputs are compared as token ids. The server sends the first token at once
and the rest together: a message for each token would cost plain decoding more than systems that verify several at a
time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from agentspec.workflows.text_to_sql import Completion, Message

if TYPE_CHECKING:
    from aiohttp import ClientSession

# No answer takes this long, so a server that takes longer hangs.
CALL_SECONDS = 900.0
_ALL_AT_ONCE = 1 << 20
_HEADERS = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The result of a request. Times are those of `time.perf_counter`. The first token comes from the prefill."""

    began: float
    first: float = 0.0
    """When the first token came."""
    ended: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    """Verified rows; 0 if the server verifies nothing."""
    drafted: int = 0
    """Tokens proposed for verification, by the server's own count."""
    accepted: int = 0
    output: Sequence[int] | str = ()
    """Token ids, or the text if the load generator keeps no ids."""
    text: str = ""
    finish_reason: str = ""
    replayed: bool = False
    """Whether the server says that the answer was forced."""
    error: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Sender(Protocol):
    """Sends requests to one server."""

    async def send(self, body: Mapping[str, Any]) -> Reply:
        """Sends a body for /generate. A failure is returned in `Reply.error`, never raised."""
        ...


class Client:
    """A session with one server; an asynchronous context manager.

    The session is aiohttp's, because httpx takes several times as much CPU time a request, which a load generator would
    take from the server.

    Args:
        url: Of the server.
        seconds: Time limit of each answer.
        force_close: Whether each request gets its own connection.
    """

    def __init__(self, url: str, *, seconds: float = CALL_SECONDS, force_close: bool = False) -> None:
        self.url = url
        self._seconds, self._force_close = seconds, force_close
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp

        # As many connections as clients, and room for an answer of any length on one line.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=self._force_close),
            timeout=aiohttp.ClientTimeout(total=self._seconds),
            read_bufsize=1 << 22,
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def session(self) -> ClientSession:
        assert self._session is not None, "use it as a context manager"
        return self._session


class StreamingSender(Client):
    """Streams answers: the first token at once, the rest together."""

    async def send(self, body: Mapping[str, Any]) -> Reply:
        import aiohttp

        began, first, last = time.perf_counter(), 0.0, None
        try:
            async with self.session.post(f"{self.url}/generate", json=streamed(body)) as response:
                if response.status != 200:
                    return _failed(began, f"{response.status}: {await response.text()}")
                async for line in response.content:
                    if not line.startswith(b"data: {"):
                        continue
                    last = json.loads(line[len(b"data: ") :])
                    if "error" in last:
                        return _failed(began, str(last["error"]))
                    first = first or time.perf_counter()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            return _failed(began, f"{type(error).__name__}: {error}")
        return reply_of(last, began, first, time.perf_counter())


class PreparedSender(Client):
    """Sends bodies that were encoded beforehand, so that the load generator takes almost no time. Answers come whole.

    Args:
        url: Of the server.
        bodies: All bodies that will be sent, each for POST to /generate.
        seconds: Time limit of each answer.
    """

    def __init__(self, url: str, bodies: Iterable[Mapping[str, Any]], *, seconds: float = CALL_SECONDS) -> None:
        super().__init__(url, seconds=seconds)
        # By identity of the body, because hashing its tokens would be work again.
        self._encoded = {id(body): json.dumps(body).encode() for body in bodies}

    async def send(self, body: Mapping[str, Any]) -> Reply:
        """Sends one of the bodies. A failure is returned in `Reply.error`, never raised."""
        return await self.send_encoded(self._encoded[id(body)])

    async def send_encoded(self, encoded: bytes) -> Reply:
        """As send(), with a body of JSON."""
        import aiohttp

        began = time.perf_counter()
        try:
            async with self.session.post(f"{self.url}/generate", data=encoded, headers=_HEADERS) as response:
                content = await response.read()
                ended = time.perf_counter()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return _failed(began, f"{type(error).__name__}: {error}")
        if response.status != 200:
            return _failed(began, f"{response.status}: {content.decode(errors='replace')}")
        return reply_of(json.loads(content), began, 0.0, ended)


def _failed(began: float, error: str) -> Reply:
    return Reply(began=began, ended=time.perf_counter(), error=error[:500])


def streamed(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a request whose first token comes at once and whose other tokens come together."""
    sampling = {**body.get("sampling_params", {}), "stream_interval": _ALL_AT_ONCE}
    return {**body, "sampling_params": sampling, "stream": True}


def reply_of(last: Mapping[str, Any] | None, began: float, first: float, ended: float) -> Reply:
    """The reply, from the last event of a stream."""
    if last is None:
        return Reply(began=began, ended=ended, error="the server sent nothing")
    meta = last["meta_info"]
    reason = meta.get("finish_reason") or {}
    output, tokens = tuple(last.get("output_ids", ())), int(meta["completion_tokens"])
    error = ""
    if reason.get("type") == "abort":
        error = f"aborted: {reason.get('message', '')}"[:500]
    elif len(output) != tokens:
        error = f"the stream ended after {len(output)} of {tokens} tokens"
    return Reply(
        began=began,
        first=first,
        ended=ended,
        prompt_tokens=int(meta["prompt_tokens"]),
        cached_tokens=int(meta.get("cached_tokens", 0)),
        tokens=tokens,
        steps=int(meta.get("spec_verify_ct", 0)),
        drafted=int(meta.get("spec_num_proposed_drafts", 0)),
        accepted=int(meta.get("spec_num_correct_drafts", 0)),
        output=output,
        text=str(last.get("text", "")),
        finish_reason=str(reason.get("type", "")),
        replayed=any("replay" in key for key in meta),
        error=error,
    )


@dataclass(frozen=True, slots=True)
class ChainModel:
    """The model of the agents' chain, on a server under evaluation."""

    sender: Sender
    encode: Callable[[Sequence[Message]], list[int]]
    """Turns messages into the token ids of a prompt."""
    on_reply: Callable[[Reply], object]
    """Called with each reply."""

    async def complete(self, messages: Sequence[Message], max_tokens: int) -> Completion:
        """As ChatModel.complete."""
        sampling = {"temperature": 0, "max_new_tokens": max_tokens}
        reply = await self.sender.send({"input_ids": self.encode(messages), "sampling_params": sampling})
        self.on_reply(reply)
        return Completion(
            text=reply.text,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.tokens,
            finish_reason=reply.finish_reason,
            seconds=reply.seconds,
            error=reply.error,
        )
