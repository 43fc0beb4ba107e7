"""What the phases of one command share: folders, deadlines, servers, and the records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agentspec.environment import without_folders
from agentspec.errors import AgentspecError
from agentspec.evals.gpu.records import Results
from agentspec.evals.gpu.servers import BACKEND, CPU_BACKEND
from agentspec.evals.gpu.sizes import SIZES, Size
from agentspec.evals.gpu.trips import Trip
from agentspec.integrations.servers.server import Server
from agentspec.progress import say


class OutOfTimeError(AgentspecError):
    """A phase reached its deadline; its records so far are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One command of a trip."""

    trip: Trip
    data: Path
    """The folder with what --prepare made, unpacked."""
    out: Path
    """Gets the records and the logs."""
    results: Results
    head_acceptance: float
    """Probability with which a token of the simulated head is right."""
    head_accept_length: float
    deadline: float
    """Of the phase, by time.monotonic()."""
    on_cpu: bool = False
    """A dry run: no GPU, no graphs, the small model."""
    eager_prefill: bool = False
    """Whether the servers of replays capture no prefills."""

    @property
    def size(self) -> Size:
        return SIZES["tiny" if self.on_cpu else self.trip.size]

    @property
    def backend(self) -> str:
        """Of attention."""
        return CPU_BACKEND if self.on_cpu else BACKEND

    @property
    def clients(self) -> tuple[int, ...]:
        """Numbers of clients that are measured."""
        return (1, 2) if self.on_cpu else self.trip.clients

    @property
    def logs(self) -> Path:
        return self.out / "logs"

    def until(self, deadline: float) -> Run:
        """The same with another deadline."""
        return replace(self, deadline=deadline)

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def check_time(self, needed: float = 0.0) -> None:
        """Raises OutOfTimeError unless so many seconds are left."""
        if self.seconds_left() < needed:
            raise OutOfTimeError(f"{max(self.seconds_left(), 0.0):.0f} s were left, {needed:.0f} s are needed")

    @contextmanager
    def starting(
        self, servers: Sequence[Server], after: float = 0.0
    ) -> Iterator[Callable[[float], list[Server | str]]]:
        """Starts servers at the same time, `after` so many seconds, without waiting; all are stopped at the end.

        Yields a function that waits until a time, by time.monotonic(), for all of them. In place of a server that did not start it
        returns the reason.
        """
        with ThreadPoolExecutor(max(len(servers), 1)) as pool:
            starting = [pool.submit(_start, server, after) for server in servers]

            def wait(until: float) -> list[Server | str]:
                try:
                    return [one.result(timeout=max(until - time.monotonic(), 1.0)) for one in starting]
                except TimeoutError as error:
                    raise OutOfTimeError("the servers were not ready in time; see their logs") from error

            try:
                yield wait
            finally:
                # Servers that are still starting end too.
                for server in servers:
                    server.stop()


def _start(server: Server, after: float) -> Server | str:
    time.sleep(after)
    try:
        server.__enter__()
    except (AgentspecError, OSError) as error:
        return without_folders(str(error))[-3000:]
    say(f"  {server.log_name} ready after {server.start_seconds:.0f} s")
    return server
