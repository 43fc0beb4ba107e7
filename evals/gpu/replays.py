"""Systems side by side on recorded sessions, measured in turns on servers that are alive together.

Every record says that answers were forced and, for systems with a head, that its acceptance was simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentspec.errors import ServerError
from agentspec.evals.clients.client import PreparedSender, Reply
from agentspec.evals.gpu.records import Record
from agentspec.evals.gpu.run import Run
from agentspec.evals.gpu.servers import HEAD_STEPS, START_SECONDS, SYSTEMS, arguments, has_head, plugin_variables
from agentspec.evals.gpu.sizes import model_folder
from agentspec.evals.gpu.work import Cell, load_cells
from agentspec.evals.run.calls import Asking, Done, closed_loop
from agentspec.integrations.servers.server import REPLAYED, RunningServer, Server
from agentspec.progress import say

FORCED = (
    "answers are recorded ones, forced token by token; weights are random, so that times are real and texts are not "
    "the model's"
)
_WARM_CLIENTS = 16
_CALL_SECONDS = 300.0
"""A server that takes longer for an answer hangs."""


class Servers:
    """The servers of some systems, alive together.

    Args:
        run: Its results get a record of each start.
        started: What Run.starting() gave for replay_servers(), in the order of `systems`.
        systems: Their names.
    """

    def __init__(self, run: Run, systems: Sequence[str], started: Sequence[Server | str]) -> None:
        self.run = run
        self.alive: dict[str, Server] = {}
        for system, server in zip(systems, started, strict=True):
            if isinstance(server, str):
                self._failed(system, {}, server)
            else:
                self.alive[system] = server
                run.results.add({**facts(run, system), "start_seconds": round(server.start_seconds, 1)})
        self.cells = load_cells(run.data / f"work-{run.size.name}.json")
        self._warm()

    def replay(self, run: Run) -> None:
        """Measures all cells in turns. A system that fails gets a record with the error, and the others go on.

        Raises:
            OutOfTimeError: The deadline came first.
            ServerError: No server is alive.
        """
        try:
            self._measure(run)
        finally:
            # A server that is gone must not hide the error that ended the measurements.
            for system, server in self.alive.items():
                if SYSTEMS[system].is_ours:
                    try:
                        told: Record = {"state": _state(server)}
                    except (ServerError, OSError) as error:
                        told = {"error": str(error)}
                    run.results.add({"part": "state", "system": system, **told})

    def _measure(self, run: Run) -> None:
        # Every cell is measured once before one is repeated: the deadline may come first.
        cells = sorted((cell for cell in self.cells if cell.clients in run.clients), key=lambda cell: cell.repetition)
        for turn, cell in enumerate(cells):
            # No server always follows the same one.
            order = list(self.alive)
            first = turn % len(order) if order else 0
            for system in (*order[first:], *order[:first]):
                run.check_time(needed=4.0)
                at = {"trace": cell.trace, "clients": cell.clients, "repetition": cell.repetition}
                try:
                    figures = measure(self.alive[system], cell, system)
                except (ServerError, OSError) as error:
                    self._failed(system, at, str(error))
                else:
                    run.results.add({**facts(run, system), **at, **figures})
                    say(f"  {cell.trace} x{cell.clients} {system}: {figures['tokens_per_second']} tokens/s")
        if not self.alive:
            raise ServerError("no server is alive; see the records")

    def _warm(self) -> None:
        """Every server answers the warm sessions, one server after another: agentspec learns how long steps take."""
        for system, server in list(self.alive.items()):
            try:
                for cell in self.cells:
                    if not cell.clients:
                        _answers(server, cell, _WARM_CLIENTS)
            except ServerError as error:
                self._failed(system, {}, str(error))

    def _failed(self, system: str, at: Record, error: str) -> None:
        server = self.alive.pop(system, None)
        tail = server.log_tail() if server else ""
        self.run.results.add({**facts(self.run, system), **at, "error": f"{error}\n{tail}"[-3000:]})
        say(f"  {system} failed: {error[-300:]}")


def replay_servers(run: Run, systems: Sequence[str]) -> list[Server]:
    """Servers of the systems that write recorded answers; not started yet."""
    return [_replay_server(run, name) for name in systems]


def _replay_server(run: Run, name: str) -> Server:
    system = SYSTEMS[name]
    words = arguments(system, run.size, run.data, backend=run.backend, max_running=max(run.clients))
    if run.eager_prefill:
        words.append("--disable-prefill-cuda-graph")
    if not run.on_cpu:
        # An idle scheduler would poll, and slow down another one on the same physical core. SGLang 0.5.23 has no such option
        # any more.
        words.append("--sleep-on-idle")
    plugins = plugin_variables(run.logs, run.head_acceptance if has_head(system) else None)
    return Server(
        model_folder(run.size, run.data),
        system.algorithm,
        log=run.logs / f"{run.size.name}-{name}.log",
        arguments=words,
        environment={**system.variables, **plugins, **REPLAYED},
        start_seconds=START_SECONDS[run.backend],
    )


def measure(server: RunningServer, cell: Cell, system: str) -> Record:
    """The figures of one cell.

    Raises:
        ServerError: A call failed, answers are not the recorded ones, agentspec is not active, or nothing was speculated.
        OSError: The server is gone.
    """
    is_ours = SYSTEMS[system].is_ours
    before = _state(server) if is_ours else {}
    answers = _answers(server, cell, cell.clients)
    seconds = max(answer.ended for answer in answers) - min(answer.began for answer in answers)
    after = _state(server) if is_ours else {}
    calls = [call for session in cell.sessions for call in session.calls]
    # The token that ends the turn may follow the recorded ones.
    wrong = sum(
        answer.output[: len(call.answer)] != call.answer or answer.tokens > len(call.answer) + 1
        for call, answer in zip(calls, answers, strict=True)
    )
    if wrong:
        raise ServerError(
            f"all answers must be the recorded ones, but {wrong} of {len(answers)} are not; is the server replaying?"
        )
    tokens = sum(answer.tokens for answer in answers)
    steps = sum(answer.steps for answer in answers)
    if system != "none" and (not steps or (is_ours and not after["counters"]["drafted_tokens"])):
        raise ServerError(f"the server at {server.url} must speculate, but drafted nothing; see its log")
    latencies = np.array([answer.seconds for answer in answers])
    prompts = sum(answer.prompt_tokens for answer in answers)
    return {
        "calls": len(answers),
        "tokens": tokens,
        "prompt_tokens": prompts,
        "uncached_prompt_tokens": prompts - sum(answer.cached_tokens for answer in answers),
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 1),
        # The first token of an answer comes from the prefill.
        "accept_length": round((tokens - len(answers)) / steps, 3) if steps else 1.0,
        "latency_p50": round(float(np.percentile(latencies, 50)), 4),
        "latency_p99": round(float(np.percentile(latencies, 99)), 4),
        **(_between(before, after, seconds) if is_ours else {}),
    }


def _answers(server: RunningServer, cell: Cell, clients: int) -> list[Reply]:
    """In the order of the sessions. Raises ServerError if a call failed."""

    async def asked() -> list[Done]:
        bodies = [call.body for session in cell.sessions for call in session.calls]
        async with PreparedSender(server.url, bodies, seconds=_CALL_SECONDS) as sender:
            return await closed_loop(sender, cell.sessions, clients, Asking(is_replay=True))

    replies = [reply for done in asyncio.run(asked()) for reply in done.replies]
    failed = [reply.error for reply in replies if reply.error]
    if failed:
        raise ServerError(f"{len(failed)} of {len(replies)} calls failed, the first: {failed[0]}")
    return replies


def _state(server: RunningServer) -> dict[str, Any]:
    state = server.agentspec_state()
    if state is None:
        raise ServerError(f"agentspec must be active in the server at {server.url}, but is not; see its log")
    return state


def _between(before: dict[str, Any], after: dict[str, Any], seconds: float) -> Record:
    """What agentspec did between two states."""
    counts = {
        name: value - before["counters"].get(name, 0)
        for name, value in after["counters"].items()
        if isinstance(value, int | float)
    }
    ours, theirs = after["control"], before["control"]
    measured = ours["measured_steps"] - theirs["measured_steps"]
    verifying = ours["observed_seconds"] - theirs["observed_seconds"]
    steps = max(counts["steps"], 1)
    return {
        "counters": {name: round(value, 6) for name, value in counts.items() if value},
        "drafting_ms_a_step": round(1e3 * counts["drafting_seconds"] / steps, 4),
        "verify_ms_a_step": round(1e3 * verifying / measured, 4) if measured else None,
        # Share of the wall time, prefills included, that the device spent on verification.
        "verify_share": round(verifying / measured * counts["steps"] / seconds, 3) if measured else None,
        "widths": {
            width: number - theirs["widths"].get(width, 0)
            for width, number in ours["widths"].items()
            if number > theirs["widths"].get(width, 0)
        },
    }


def facts(run: Run, system: str) -> Record:
    """What the records of a system's replays have in common."""
    head = (
        f"EAGLE-3 head of real size, acceptance simulated: chains of {HEAD_STEPS}, accept length "
        f"{run.head_accept_length:g} where it drafts alone"
    )
    return {
        "part": "replay",
        "size": run.size.name,
        "backend": run.backend,
        "system": system,
        "note": FORCED if run.size.is_random else "answers are recorded ones, forced token by token; the small model",
        **({"head": head} if has_head(SYSTEMS[system]) else {}),
    }
