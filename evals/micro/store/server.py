"""Warm start of real servers, on the demo's work: three servers are asked questions that no server has learned from.

    warm       has answered other questions of the same databases
    restarted  on the same SQLite file; or joined, a second server on the same Redis
    cold       has learned nothing

The unseen questions are asked with no_store, so that none of the three learns from them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentspec.errors import ServerError
from agentspec.evals.micro.store.replica import empty_store
from agentspec.evals.micro.store.rows import Row
from agentspec.evals.run.demo_passes import ask, check_active, draw_passes, measure, output_of
from agentspec.evals.sql_databases import databases_in
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import Server
from agentspec.progress import Progress
from agentspec.workflows.text_to_sql import Database, Question

_CONCURRENCY = 2
_DELIVERY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Pass:
    accept_length: float
    requests: int
    tokens: int
    steps: int
    outputs: list[Any]

    @property
    def accepted(self) -> float:
        """Tokens a step."""
        return self.accept_length - 1


def warm_server_rows(kind: str, num_questions: int, seed: int, folder: Path) -> Iterator[Row]:
    """The ratio of accepted tokens a step, new server over warm.

    Raises:
        ServerError: A server does not start, agentspec is not active or drafts nothing, or outputs differ.
    """
    label = f"warm start of servers, {kind}"
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack, Progress(label, 6) as progress:
        databases = databases_in(place)
        learned, unseen = draw_passes(databases, num_questions, seed).values()
        url = stack.enter_context(empty_store(kind, folder))
        first = stack.enter_context(ExitStack())
        server = first.enter_context(_server(url, folder / "first.log"))
        progress.update(1, "started")
        ask(server, learned, databases, _CONCURRENCY)
        num_delivered = _wait_until_delivered(server)
        progress.update(2, "learned")
        warm = _ask(server, unseen, databases)
        check_active(server.agentspec_state())
        progress.update(3, "warm")
        name = "joined"
        if kind == "sqlite":
            name = "restarted"
            first.close()
        server = stack.enter_context(_server(url, folder / "second.log"))
        progress.update(4, "started")
        new = _ask(server, unseen, databases)
        state = server.agentspec_state()
        check_active(state)
        progress.update(5, name)
        with _server("memory://", folder / "cold.log") as server:
            cold = _ask(server, unseen, databases)
    assert state is not None
    passes = {"warm": warm, name: new, "cold": cold}
    differing = [name for name, done in passes.items() if done.outputs != warm.outputs]
    if differing:
        raise ServerError(f"outputs must not depend on what was learned, but {', '.join(differing)} differs from warm")
    yield Row(
        case=f"warm_start_server_{kind}",
        value=new.accepted / warm.accepted,
        unit="ratio of accepted tokens a step",
        more={
            "accepted_per_step": {name: round(done.accepted, 3) for name, done in passes.items()},
            "accept_length": {name: done.accept_length for name, done in passes.items()},
            "steps": {name: done.steps for name, done in passes.items()},
            "requests": warm.requests,
            "tokens": warm.tokens,
            "identical_outputs": True,
            "learned_questions": len(learned),
            "unseen_questions": len(unseen),
            "delivered_outputs": num_delivered,
            "loaded_outputs": state["store"]["loaded_outputs"],
            "drafted_tokens": state["counters"]["drafted_tokens"],
        },
    )


def _server(url: str, log: Path) -> Server:
    return Server(MODEL_FOLDER, "AGENTSPEC", log=log, environment={"AGENTSPEC_STORE": url})


def _ask(server: Server, questions: Sequence[Question], databases: dict[Database, Path]) -> _Pass:
    started = time.perf_counter()
    answers = ask(server, questions, databases, _CONCURRENCY, learn=False)
    result = measure("agentspec", answers, time.perf_counter() - started)
    return _Pass(
        result.accept_length,
        result.requests,
        result.tokens,
        result.verify_steps,
        [output_of(answer) for answer in answers],
    )


def _wait_until_delivered(server: Server) -> int:
    """Waits until the server has put all of its outputs into the store; gives their number."""
    deadline = time.monotonic() + _DELIVERY_SECONDS
    while time.monotonic() < deadline:
        store = (server.agentspec_state() or {}).get("store")
        if store and store["delivered_outputs"] and not store["queued_outputs"]:
            return int(store["delivered_outputs"])
        time.sleep(0.2)
    raise ServerError(f"the server did not deliver its outputs to the store: {store}")
