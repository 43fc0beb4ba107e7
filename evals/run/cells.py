"""What `agentspec eval` measures: cells of a task, each asked of every system.

    cold    everything forgotten, then measured
    warm    everything forgotten, other units of the task learnt, then measured

A cell is a pass with some number of clients, in one repeat. It begins with a flush, so that cells do not depend on each
other; what flushing does not reset are a server's measured step times and its corrections of estimates, for which each
repeat has servers of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentspec.errors import ConfigError
from agentspec.evals.workloads.task import Pool, Unit

PASSES = ("cold", "warm")

Key = tuple[str, str, int, int]
"""Task, pass, clients, repeat."""


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """Units that so many clients work off, after others were learnt; some of them at a time, see `turns`."""

    task: str
    pass_name: str
    concurrency: int
    repeat: int
    learnt: tuple[Unit, ...]
    units: tuple[Unit, ...]
    asked_before: int
    """Calls that an earlier cell measured too, for want of others."""
    max_turns: int = 1

    @property
    def turns(self) -> list[tuple[Unit, ...]]:
        """The units in order, in at most `max_turns` parts of about the same number: two or more for every client, since
        at a part's end some clients have nothing left to do."""
        count = max(1, min(self.max_turns, len(self.units) // (2 * self.concurrency)))
        cuts = [round(i * len(self.units) / count) for i in range(count + 1)]
        return [self.units[begin:end] for begin, end in pairwise(cuts)]

    @property
    def key(self) -> Key:
        return self.task, self.pass_name, self.concurrency, self.repeat


def plan_cells(
    task: str,
    pool: Pool,
    passes: Sequence[str],
    concurrencies: Sequence[int],
    repeats: int,
    num_requests: int,
    max_turns: int = 1,
    calls_a_client: int = 2,
) -> list[Cell]:
    """The cells of a task in the order in which they are measured, repeat after repeat, the same whatever serves them.

    Args:
        task: Its name.
        pool: What it asks.
        passes: Out of PASSES.
        concurrencies: Numbers of clients.
        repeats: How often each is measured.
        num_requests: Model calls of a cell, about so many; more where that would not give every client `calls_a_client`.
        max_turns: In how many parts a cell is asked at most.
        calls_a_client: Model calls for each client at least; with few of them most clients have nothing left to do while
            the last ones are answered.

    Raises:
        ConfigError: A number is below 1, or the task has too little for so many clients.
    """
    if min(repeats, num_requests, max_turns, *concurrencies) < 1:
        raise ConfigError(
            "repeats, requests, turns and clients must be at least 1, "
            f"got {repeats}, {num_requests}, {max_turns} and {concurrencies}"
        )
    cells = []
    for repeat in range(repeats):
        for pass_name in passes:
            for concurrency in concurrencies:
                units = pool.draw(max(num_requests, calls_a_client * concurrency), concurrency)
                learnt = pool.learnt if pass_name == "warm" else ()
                cells.append(Cell(task, pass_name, concurrency, repeat, learnt, units, pool.asked_before(), max_turns))
    return cells
