"""Asks one server the cells of a task: flush, learn, then measure with clients that wait for their answers.

A cell is asked in turns, and other servers answer theirs in between. The pace of a machine changes within a minute, so
every server meets the same changes. Seconds count only while a turn runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentspec.errors import ServerError
from agentspec.evals.clients.client import ChainModel, PreparedSender, Reply, Sender, StreamingSender
from agentspec.evals.emulated.servers import device_counts, difference, emulated_span, preempted_seconds
from agentspec.evals.run.cells import Cell
from agentspec.evals.systems import System
from agentspec.evals.workloads.task import Conversation, Unit
from agentspec.integrations.servers.server import Server
from agentspec.workflows.text_to_sql import ChainConfig, Database, Message, Question, answer_question

_LEARNING_CLIENTS = 8
_CHAIN = ChainConfig(concurrency=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How servers are asked."""

    is_replay: bool
    databases: Mapping[Database, Path] = field(default_factory=dict)
    """What questions are about."""
    encode: Callable[[Sequence[Message]], list[int]] = lambda messages: []
    """Turns the messages of a question's calls into the token ids of a prompt."""
    is_emulated: bool = False
    """Whether servers emulate a device, so that seconds are those of its clock. Requests are then prepared beforehand and
    not streamed; see PreparedSender."""
    temperature: float = 0.0
    """Above 0, answers are sampled, and are not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What agentspec counted in a cell; zero for other systems."""

    steps: int = 0
    drafter_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafting_seconds: float = 0.0
    verify_seconds: float = 0.0
    """Of the steps whose verification was timed."""
    timed_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """The result of a cell on one server."""

    cell: Cell
    replies: tuple[Reply, ...]
    """In the order of the work."""
    outputs: str | None
    """Digest of all answers in the order of the work, which is the same for every server; None where a call failed."""
    counts: Counts
    seconds: float
    """From the first request of a turn to its last answer, summed over turns; emulated time where a device is
    emulated."""
    cpu_seconds: float
    """CPU time of the server's processes during these seconds."""
    prompt_tokens_cut: int
    accuracy: float | None
    """Share of the questions with a correct answer; None without questions."""
    exact_answers: float | None
    """Share of the forced answers that came back token for token; None without forced answers."""
    task_seconds: tuple[float, ...] = ()
    """Of each question from its first call to its answer, tools included; () without questions."""
    wall_seconds: float = 0.0
    """As `seconds`, but always by the client's clock."""
    device: Mapping[str, float] = field(default_factory=dict)
    """What the emulated device counted during the cell, see servers.device_counts; {} without one."""
    preempted_seconds: float = 0.0
    """Seconds in which other processes kept the server's scheduler from running; 0 where they are not counted."""

    @property
    def good(self) -> list[Reply]:
        """The replies with an answer."""
        return [reply for reply in self.replies if not reply.error]

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(reply.tokens for reply in self.good)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Some of a cell's units on one server."""

    cell: Cell
    tokens: int
    seconds: float
    """From the first request to the last answer."""
    result: CellResult | None
    """Of the whole cell, if this was its last turn."""


def ask_cells(server: Server, system: System, cells: Sequence[Cell], asking: Asking) -> Iterator[Turn]:
    """Yields the turns of the cells in order. The caller asks other servers before it takes the next turn.

    Raises:
        ServerError: All calls of a cell fail, a call fails while the server learns, or the server does not behave
            as the system's name says: it reports no speculation, drafts nothing, drafts although it should not, or
            forces answers exactly where it should not.
    """
    warm_up = tuple(cells[0].units[:4]) if cells else ()
    # The first steps pay for lazy set-up in every system. The flush that follows drops what the server learnt from them.
    asyncio.run(_ask(server, warm_up, 4, asking))
    for cell in cells:
        server.flush()
        if cell.learnt:
            taught = asyncio.run(_ask(server, cell.learnt, _LEARNING_CLIENTS, asking))
            failed = [reply.error for one in taught for reply in one.replies if reply.error]
            if failed:
                raise ServerError(f"a call to {system.label} failed while it learnt: {failed[0]}")
        before = _counted(server, system)
        done: list[Done] = []
        device: Counter[str] = Counter()
        seconds = cpu_seconds = wall_seconds = preempted = 0.0
        turns = cell.turns
        for number, units in enumerate(turns, 1):
            began = server.cpu_seconds()
            preempted_before = preempted_seconds(server) if asking.is_emulated else 0.0
            device_began = device_counts(server) if asking.is_emulated else {}
            some = asyncio.run(_ask(server, units, cell.concurrency, asking))
            cpu_seconds += server.cpu_seconds() - began
            answers = [reply for one in some for reply in one.replies]
            took = max(reply.ended for reply in answers) - min(reply.began for reply in answers)
            wall_seconds += took
            preempted += preempted_seconds(server) - preempted_before if asking.is_emulated else 0.0
            if asking.is_emulated:
                counted = difference(device_counts(server), device_began)
                device.update(counted)
                took = emulated_span(counted, took)
            done, seconds = done + some, seconds + took
            result = None
            if number == len(turns):
                check_replies(system, [reply for one in done for reply in one.replies], is_replay=asking.is_replay)
                check_state(system, server.agentspec_state())
                server.check_replay(asking.is_replay)
                after = _counted(server, system)
                counts = Counts(**{name: after[name] - before[name] for name in after})
                spent = {"seconds": seconds, "cpu_seconds": cpu_seconds, "wall_seconds": wall_seconds}
                result = _result(cell, done, counts, asking, device=dict(device), preempted_seconds=preempted, **spent)
                if result.exact_answers == 0.0:
                    raise ServerError(f"{system.label} gave none of the recorded answers; its figures are refused")
            yield Turn(cell=cell, tokens=sum(reply.tokens for reply in answers), seconds=took, result=result)


def _result(cell: Cell, done: Sequence[Done], counts: Counts, asking: Asking, **spent: Any) -> CellResult:
    """`spent`: the fields of CellResult that say what the cell took."""
    replies = tuple(reply for one in done for reply in one.replies)
    outcomes = [one.outcome for one in done if one.outcome]
    is_compared = asking.temperature == 0 and not any(reply.error for reply in replies)
    return CellResult(
        cell=cell,
        replies=replies,
        outputs=digest([reply.output for reply in one.replies] for one in done) if is_compared else None,
        counts=counts,
        prompt_tokens_cut=sum(
            call.prompt_tokens_cut for unit in cell.units if isinstance(unit, Conversation) for call in unit.calls
        ),
        accuracy=sum(outcome == "correct" for outcome in outcomes) / len(outcomes) if outcomes else None,
        exact_answers=exact_answers(cell.units, [one.replies for one in done]),
        task_seconds=tuple(one.seconds for one in done if one.outcome),
        **spent,
    )


def check_replies(system: System, replies: Sequence[Reply], *, is_replay: bool) -> None:
    """Refuses answers that were not made in the way that the system's name says.

    Args:
        system: The system that was asked.
        replies: Its answers.
        is_replay: Whether the answers were to be forced.

    Raises:
        ServerError: Every call failed, or speculation is missing or in the way.
    """
    good = [reply for reply in replies if not reply.error]
    if not good:
        raise ServerError(f"all {len(replies)} calls to {system.label} failed; the first: {replies[0].error}")
    steps, decoded = sum(reply.steps for reply in good), sum(reply.tokens - 1 for reply in good)
    if system.algorithm == "none" and steps:
        raise ServerError(f"{system.label} should decode plainly but verified {steps} rows; its figures are refused")
    if system.algorithm != "none" and decoded and not steps:
        raise ServerError(f"{system.label} reported no verify steps, so its figures are refused; is speculation on?")
    # agentspec may find nothing to draft in a few calls; check_state() looks at all of them.
    always_drafts = system.algorithm != "none" and not system.is_ours
    if always_drafts and decoded and not sum(reply.drafted for reply in good):
        raise ServerError(f"{system.label} drafted nothing, so its figures are refused")
    if any(reply.replayed for reply in good) and not is_replay:
        raise ServerError(f"{system.label} forced answers where the model should give them; its figures are refused")


def check_state(system: System, state: Mapping[str, Any] | None) -> None:
    """Refuses a server whose own state is not what was asked for.

    Args:
        system: The system that was started.
        state: The block `agentspec` of its /server_info; None without one.

    Raises:
        ServerError: agentspec is inactive, idle, or active where it should not be.
    """
    told = state or {}
    if not system.is_ours:
        if told.get("active") and told.get("counters"):
            raise ServerError(f"agentspec drafts in the server of {system.label}; its figures are refused")
    # SGLang goes on without a plugin that failed to load.
    elif not told.get("active"):
        raise ServerError(
            "agentspec is not active in the server, so its figures would be NGRAM's; see the server's log"
        )
    elif not told["counters"]["drafted_tokens"]:
        raise ServerError(f"agentspec drafted nothing, so there is nothing to show: {told['counters']}")


def exact_answers(units: Sequence[Unit], replies: Sequence[Sequence[Reply]]) -> float | None:
    """Share of the forced answers that came back; None if none was forced or only texts are known."""
    told = [
        tuple(reply.output[: len(call.answer)]) == call.answer
        for unit, some in zip(units, replies, strict=True)
        if isinstance(unit, Conversation)
        for call, reply in zip(unit.calls, some, strict=True)
        if call.answer and not isinstance(reply.output, str)
    ]
    return sum(told) / len(told) if told else None


def digest(outputs: Any) -> str:
    """A hash that differs where outputs differ."""
    return hashlib.sha256(json.dumps([list(one) for one in outputs]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Done:
    """The replies to a unit and, for a question, its outcome."""

    replies: tuple[Reply, ...]
    outcome: str = ""
    seconds: float = 0.0
    """0 unless the unit is a question."""


async def _ask(server: Server, units: Sequence[Unit], clients: int, asking: Asking) -> list[Done]:
    """The results of the units in their order, asked by `clients` clients."""
    async with AsyncExitStack() as stack:
        sender: Sender
        if asking.is_emulated:
            bodies = [call.body for unit in units if isinstance(unit, Conversation) for call in unit.calls]
            sender = await stack.enter_async_context(PreparedSender(server.url, bodies))
        else:
            sender = await stack.enter_async_context(StreamingSender(server.url))
        return await closed_loop(sender, units, clients, asking)


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A sender of requests at a temperature."""

    sender: Sender
    temperature: float

    async def send(self, body: Mapping[str, Any]) -> Reply:
        """As Sender.send."""
        sampling = {**body["sampling_params"], "temperature": self.temperature}
        return await self.sender.send({**body, "sampling_params": sampling})


async def closed_loop(sender: Sender, units: Sequence[Unit], clients: int, asking: Asking) -> list[Done]:
    """As `_ask`, with any sender."""
    if asking.temperature > 0:
        sender = _Sampled(sender, asking.temperature)
    gate = asyncio.Semaphore(clients)
    by_name = {database.name: (database, path) for database, path in asking.databases.items()}

    async def one(unit: Unit) -> Done:
        async with gate:
            if isinstance(unit, Question):
                replies: list[Reply] = []
                model = ChainModel(sender, asking.encode, replies.append)
                began = time.perf_counter()
                answer = await answer_question(model, unit, *by_name[unit.database], _CHAIN)
                return Done(tuple(replies), answer.outcome, time.perf_counter() - began)
            return Done(tuple([await sender.send(call.body) for call in unit.calls]))

    return list(await asyncio.gather(*(one(unit) for unit in units)))


def _counted(server: Server, system: System) -> dict[str, Any]:
    """What agentspec has counted so far, by the field names of Counts."""
    if not system.is_ours:
        return {}
    state = server.agentspec_state() or {}
    counters, control = state.get("counters", {}), state.get("control", {})
    names = ("steps", "drafter_steps", "drafted_tokens", "accepted_tokens", "drafting_seconds")
    missing = [name for name in names if name not in counters]
    if missing:
        raise ServerError(
            f"{system.label} must count {', '.join(missing)} in /server_info, but counts {', '.join(counters) or 'nothing'}"
        )
    return {
        **{name: counters[name] for name in names},
        "verify_seconds": control.get("observed_seconds", 0.0),
        "timed_steps": control.get("measured_steps", 0),
    }
