"""Phases of work on one server, made of streams of agents' questions and open prompts. Every call is timed and every
output is kept for comparison."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from agentspec.errors import ServerError
from agentspec.evals.research.tiny_sql.open_chat import OPEN_MAX_TOKENS
from agentspec.evals.run.demo_passes import check_active, output_of, verify_steps
from agentspec.evals.systems import System
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import RunningServer, Server
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

Kind = Literal["agents", "open"]
KINDS: tuple[Kind, ...] = ("agents", "open")
CALLS_A_QUESTION = 3
"""Number of calls that the chain of agents makes for a question, on average."""

Prompt = tuple[Message, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stream:
    """Work of one kind, with at most `concurrency` questions or prompts at a time."""

    concurrency: int
    questions: tuple[Question, ...] = ()
    prompts: tuple[Prompt, ...] = ()

    @property
    def kind(self) -> Kind:
        return "agents" if self.questions else "open"

    @property
    def requests(self) -> int:
        """Approximate number of model calls."""
        return len(self.questions) * CALLS_A_QUESTION + len(self.prompts)

    def part(self, i: int, of: int) -> Stream:
        """Part `i` of `of` parts."""

        def cut(work: tuple[T, ...]) -> tuple[T, ...]:
            return work[len(work) * i // of : len(work) * (i + 1) // of]

        return Stream(self.concurrency, cut(self.questions), cut(self.prompts))


@dataclass(frozen=True, slots=True)
class Phase:
    """Streams that run at the same time. Their results are reported as `row`, or not at all if it is ""."""

    row: str
    streams: tuple[Stream, ...]
    flush: bool = False

    def slices(self, size: int) -> list[tuple[Stream, ...]]:
        """The streams in turns of about `size` requests each, so that servers can be asked turn by turn."""
        number = max(1, round(max(stream.requests for stream in self.streams) / size))
        return [tuple(stream.part(i, number) for stream in self.streams) for i in range(number)]


# No answer takes this long, so a server that takes longer hangs.
_CALL_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One request with its begin and end, in seconds since its slice began.

    Its first token comes from the prefill, every other token from one of `steps` verified rows.
    """

    kind: Kind
    began: float
    ended: float
    tokens: int
    steps: int


@dataclass(frozen=True, slots=True)
class SliceResult:
    """Some of a phase's requests on one server."""

    row: str
    phase: int
    """Number of the phase, from 0."""
    calls: tuple[TimedCall, ...]
    """In the order in which they ended."""
    outputs: tuple[Any, ...]
    """The outputs of each stream in the order of the work, so that they are comparable between servers."""
    steps: int
    """Decode steps of the batch that the server counted; 0 if it counts none."""
    drafter_steps: int
    """Those steps in which the draft model ran."""
    verified_tokens: int
    """Tokens that agentspec's verify steps computed, roots and padding included; 0 for other systems."""
    cpu_seconds: float
    """CPU time of the server's processes."""


def run_phases(
    server: Server, system: System, phases: Sequence[Phase], databases: Mapping[Database, Path], slice_requests: int
) -> Iterator[SliceResult]:
    """Asks the server everything, a slice of `slice_requests` requests at a time.

    Raises:
        ServerError: A call fails, a speculative server does not report its verify steps, or agentspec is inactive,
            drafted nothing, or does not count the steps of its draft model.
    """
    paths = dict(databases)
    # The first decode steps pay for lazy set-up in every system. The flush drops what the server learnt from them.
    widest = sorted((stream for phase in phases for stream in phase.streams), key=lambda stream: stream.concurrency)
    by_kind = {s.kind: Stream(s.concurrency, s.questions[:2], s.prompts[: s.concurrency]) for s in widest}
    asyncio.run(_ask(server, system, tuple(by_kind.values()), paths))
    server.flush()
    for number, phase in enumerate(phases):
        if phase.flush:
            server.flush()
        for streams in phase.slices(slice_requests):
            before, began = _counted(server, system), server.cpu_seconds()
            calls, outputs = asyncio.run(_ask(server, system, streams, paths))
            cpu_seconds = server.cpu_seconds() - began
            if system.is_ours:
                check_active(server.agentspec_state())
            after = _counted(server, system)
            yield SliceResult(
                row=phase.row,
                phase=number,
                calls=tuple(sorted(calls, key=lambda call: call.ended)),
                outputs=tuple(outputs),
                steps=after["steps"] - before["steps"],
                drafter_steps=after["drafter_steps"] - before["drafter_steps"],
                verified_tokens=after["verified_tokens"] - before["verified_tokens"],
                cpu_seconds=cpu_seconds,
            )


def _counted(server: Server, system: System) -> dict[str, int]:
    """What agentspec has counted so far: steps of the batch, steps with a forward of the draft model, and verified
    tokens."""
    names = ("steps", "drafter_steps", "verified_tokens")
    if not system.is_ours:
        return dict.fromkeys(names, 0)
    counters = (server.agentspec_state() or {}).get("counters", {})
    missing = [name for name in names if name not in counters]
    if missing:
        raise ServerError(
            f"{system.label} must count its steps and those of its drafter in /server_info, but there is no "
            f"{' and no '.join(missing)} among {', '.join(counters) or 'no counters'}; see the server's log"
        )
    return {name: int(counters[name]) for name in names}


class WatchedChat:
    """A chat model that passes each answered call to `on_call`, with the time.perf_counter() at which the call began.

    Raises:
        ServerError: A call fails; `label` names the server.
    """

    def __init__(
        self, model: ChatModel, label: str, on_call: Callable[[Sequence[Message], Completion, float], object]
    ) -> None:
        self._model, self._label, self._on_call = model, label, on_call

    async def complete(self, messages: Sequence[Message], max_tokens: int) -> Completion:
        began = time.perf_counter()
        completion = await self._model.complete(messages, max_tokens)
        if completion.error:
            raise ServerError(f"a call to {self._label} failed: {completion.error}")
        self._on_call(messages, completion, began)
        return completion


@asynccontextmanager
async def small_model(server: RunningServer, body: Mapping[str, Any] | None = None) -> AsyncIterator[ChatModel]:
    """The small model of a server over the OpenAI API; `body` has further values for each request."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=_CALL_SECONDS) as client:
        yield OpenAIChat(client, MODEL_FOLDER.name, dict(body or {}))


async def _ask(
    server: Server, system: System, streams: Sequence[Stream], databases: dict[Database, Path]
) -> tuple[list[TimedCall], list[Any]]:
    """All calls of the streams, which run at the same time, and each stream's outputs."""
    calls: list[TimedCall] = []
    async with small_model(server, {"return_spec_tokens_details": True}) as model:
        slice_began = time.perf_counter()

        def run(stream: Stream) -> Coroutine[Any, Any, list[Any]]:
            def note(messages: Sequence[Message], completion: Completion, began: float) -> None:
                decoded = completion.completion_tokens - 1
                steps = decoded if system.algorithm == "none" else verify_steps(completion)
                if decoded and not steps:
                    raise ServerError(f"{system.label} reported no verify steps; is speculative decoding on?")
                times = began - slice_began, time.perf_counter() - slice_began
                calls.append(TimedCall(stream.kind, *times, completion.completion_tokens, steps))

            return run_stream(WatchedChat(model, system.label, note), stream, databases)

        return calls, list(await asyncio.gather(*(run(stream) for stream in streams)))


async def run_stream(model: ChatModel, stream: Stream, databases: Mapping[Database, Path]) -> list[Any]:
    """The outputs of a stream's questions, then those of its prompts, each in order."""
    config = ChainConfig(concurrency=stream.concurrency)
    answers = await answer_questions(model, stream.questions, dict(databases), config) if stream.questions else []
    gate = asyncio.Semaphore(stream.concurrency)

    async def one(messages: Sequence[Message]) -> tuple[str, int, str]:
        async with gate:
            completion = await model.complete(messages, OPEN_MAX_TOKENS)
        return completion.text, completion.completion_tokens, completion.finish_reason

    spoken = await asyncio.gather(*(one(messages) for messages in stream.prompts))
    return [*map(output_of, answers), *spoken]
