"""What the servers of the report's verdict are asked, and the log that the report reads.

log     answered by a plain server, written as services write it
cold    other work of the same kind, as many requests as the log has, for servers that have learnt nothing
warm    other work again, for a server that has answered the requests of the log
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from agentspec.evals.run.phases import Phase, Stream, WatchedChat, run_stream, small_model
from agentspec.evals.workloads.load import plan_load
from agentspec.integrations.servers.server import RunningServer
from agentspec.workflows.text_to_sql import (
    Completion,
    Database,
    Message,
)

State = Literal["cold", "warm"]
STATES: tuple[State, ...] = get_args(State)
# The log and the two states have seeds of their own, so that their work only agrees by chance.
_LOG_SEED, _WARM_SEED = 1_000_003, 2_000_003
_LOG_CLIENTS = 4


def logged_work(workload: str, databases: Mapping[Database, Path], num_requests: int, seed: int) -> Stream:
    """The work that the log records."""
    phases = plan_load(workload, databases, (_LOG_CLIENTS,), num_requests, 1, seed + _LOG_SEED)
    # The first phase of the agents only teaches the server.
    return phases[-1].streams[0]


def measured_work(
    workload: str,
    databases: Mapping[Database, Path],
    concurrency: Sequence[int],
    requests: Mapping[State, int],
    turns: int,
    seed: int,
) -> dict[str, list[Phase]]:
    """The phases of each row, by state and clients; the first phase of a row drops what was learnt.

    Args:
        workload: One of WORKLOADS.
        databases: Of the agents' questions.
        concurrency: Numbers of clients.
        requests: Approximate number for each state and number of clients.
        turns: Number of parts in which they are asked.
        seed: Of questions and prompts.
    """
    found: dict[str, list[Phase]] = {}
    for state in STATES:
        number, drawn = requests[state], seed + (_WARM_SEED if state == "warm" else 0)
        for phase in plan_load(workload, databases, concurrency, number, turns, drawn):
            if not phase.row:
                continue
            clients = phase.streams[0].concurrency
            phases = found.setdefault(row_name(state, clients), [])
            phases.append(replace(phase, row=row_name(state, clients), flush=not phases))
    return found


def phases_of(work: Mapping[str, Sequence[Phase]], log: Stream | None) -> list[Phase]:
    """All phases of a server. A server that learns is asked the log before each warm row; None: it does not learn."""
    phases: list[Phase] = []
    for row, turns in work.items():
        if log is not None and row.startswith("warm"):
            phases += [Phase("", (log,), flush=True), *(replace(turn, flush=False) for turn in turns)]
        else:
            phases += turns
    return phases


def row_name(state: State, clients: int) -> str:
    return f"{state}@{clients}"


def write_log(server: RunningServer, stream: Stream, databases: Mapping[Database, Path], path: Path) -> None:
    """Asks the server everything and writes a line for each request, as services log it.

    Raises:
        ServerError: A call fails.
    """
    records: list[dict[str, Any]] = []

    async def ask() -> None:
        async with small_model(server) as model:
            await run_stream(WatchedChat(model, "the plain server", note(records)), stream, databases)

    asyncio.run(ask())
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def note(records: list[dict[str, Any]]) -> Callable[[Sequence[Message], Completion, float], None]:
    """For WatchedChat: keeps each call in the form of a log."""
    return lambda messages, completion, began: records.append(
        {"messages": [dict(message) for message in messages], "completion": completion.text}
    )
