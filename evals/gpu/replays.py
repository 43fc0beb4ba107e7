"""Systems side by side on recorded calls. Servers that fit the GPU together are alive together and asked in turns.

Every record says that answers were replayed and, for systems with a head, that its acceptance was simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentspec.errors import ServerError
from agentspec.evals.clients.open_loop import send_closed
from agentspec.evals.gpu.load import measure
from agentspec.evals.gpu.servers import HEAD_STEPS, WITH_HEAD, algorithm, replay_server
from agentspec.evals.gpu.sizes import Size
from agentspec.evals.gpu.trip import Record, Trip
from agentspec.evals.gpu.work import Work
from agentspec.integrations.servers.server import Server
from agentspec.progress import say

REPLAYED = "answers are recorded ones, forced token by token; weights are random, so that times are real and texts are not the model's"
"""Note in every record of a size with random weights."""


def head_note(trip: Trip) -> str:
    """The note about the head in records of systems with one."""
    return (
        f"EAGLE-3 head of real size, acceptance simulated: chains of {HEAD_STEPS}, accept length "
        f"{trip.head_accept_length:g} where it drafts alone, of published 3.2 to 4.7"
    )


def compare(
    trip: Trip,
    size: Size,
    backend: str,
    systems: Sequence[str],
    works: Sequence[Work],
    on_record: Callable[[Record], object],
) -> bool:
    """Starts the systems at the same time and measures them, for each trace and number of clients; False if the time
    was up before everything was done.

    A system that fails gets a record with the error, and the others go on.

    Args:
        trip: The run.
        size: Of the model.
        backend: Of attention.
        systems: As many as fit the GPU together.
        works: What is asked, one after another.
        on_record: Gets each record at once.
    """
    most = max(trip.concurrencies)
    servers = [
        replay_server(
            system,
            size,
            trip.data,
            backend=backend,
            max_running=most,
            head_acceptance=trip.head_acceptance,
            log=trip.logs / f"{size.name}-{backend}-{system}.log",
        )
        for system in systems
    ]
    with trip.started(servers) as found:
        alive: dict[str, Server] = {}
        for system, server in zip(systems, found, strict=True):
            if isinstance(server, str):
                on_record({**_facts(trip, size, backend, system), "error": server})
                say(f"  {system} failed: {server}")
            else:
                alive[system] = server
        return all(_run(trip, size, backend, alive, work, most, on_record) for work in works)


def _run(
    trip: Trip,
    size: Size,
    backend: str,
    alive: dict[str, Server],
    work: Work,
    most: int,
    on_record: Callable[[Record], object],
) -> bool:
    """One trace. Servers that fail are removed from `alive`. False if the time was up."""

    def guarded(system: str, facts: Record, call: Callable[[], Record]) -> None:
        try:
            on_record({**facts, **call()})
        except (ServerError, OSError) as error:
            on_record({**facts, "error": str(error)[:600]})
            say(f"  {system} failed: {error}")
            del alive[system]

    for system, server in list(alive.items()):
        try:
            server.flush()
            send_closed(server, work.warm, most)
        except OSError as error:
            on_record({**_facts(trip, size, backend, system), "trace": work.trace, "error": str(error)[:600]})
            del alive[system]
    for turn, clients in enumerate(trip.concurrencies):
        # No server always follows the same one.
        order = list(alive)
        first = turn % len(order) if order else 0
        for system in (*order[first:], *order[:first]):
            if trip.seconds_left() < 0:
                return False
            facts = {
                **_facts(trip, size, backend, system),
                "trace": work.trace,
                "concurrency": clients,
                "warm_requests": len(work.warm),
            }
            server = alive[system]

            def measured(server: Server = server, system: str = system, clients: int = clients) -> Record:
                is_ours = algorithm(system) == "AGENTSPEC"
                return measure(
                    server,
                    work.measured[clients],
                    clients,
                    is_ours=is_ours,
                    speculates=system != "none",
                    busy=trip.busy.share,
                )

            guarded(system, facts, measured)
    return True


def _facts(trip: Trip, size: Size, backend: str, system: str) -> Record:
    return {
        "part": "replay",
        "size": size.name,
        "backend": backend,
        "system": system,
        "note": REPLAYED if size.is_random else "answers are recorded ones, forced token by token; the small model",
        **({"head": head_note(trip)} if system in WITH_HEAD else {}),
    }
