"""What the phases of one command share: folders, deadlines, servers, and the records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agentspec.environment import without_folders
from agentspec.errors import AgentspecError
from agentspec.evals.gpu.records import Results
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

    @property
    def size(self) -> Size:
        return SIZES["tiny" if self.on_cpu else self.trip.size]

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
    def started(
        self, servers: Sequence[Server], meanwhile: Callable[[], object] = lambda: None
    ) -> Iterator[list[Server | str]]:
        """Starts servers at the same time, calls `meanwhile`, and waits for them. A server that did not start is replaced
        by the reason. All are stopped at the end, also if `meanwhile` raises."""
        with ExitStack() as stack, ThreadPoolExecutor(max(len(servers), 1)) as pool:

            def start(server: Server) -> Server | str:
                try:
                    stack.enter_context(server)
                except (AgentspecError, OSError) as error:
                    return without_folders(str(error))[-3000:]
                say(f"  {server.log_name} ready after {server.start_seconds:.0f} s")
                return server

            starting = [pool.submit(start, server) for server in servers]
            try:
                meanwhile()
                found = [one.result(timeout=max(self.seconds_left(), 1.0)) for one in starting]
            except BaseException as error:
                # Servers that are still starting end too.
                for server in servers:
                    server.stop()
                if isinstance(error, TimeoutError):
                    raise OutOfTimeError("the servers were not ready in time; see their logs") from error
                raise
            yield found
