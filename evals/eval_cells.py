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

from agentspec.errors import ConfigError
from agentspec.evals.tasks.task import Pool, Unit

PASSES = ("cold", "warm")

Key = tuple[str, str, int, int]
"""Task, pass, clients, repeat."""


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """Units that so many clients work off, after others were learnt."""

    task: str
    pass_name: str
    concurrency: int
    repeat: int
    learnt: tuple[Unit, ...]
    units: tuple[Unit, ...]
    asked_before: int
    """Calls that an earlier cell measured too, for want of others."""

    @property
    def key(self) -> Key:
        return self.task, self.pass_name, self.concurrency, self.repeat


def plan_cells(
    task: str, pool: Pool, passes: Sequence[str], concurrencies: Sequence[int], repeats: int, num_requests: int
) -> list[Cell]:
    """The cells of a task in the order in which they are measured, repeat after repeat, the same whatever serves them.

    Args:
        task: Its name.
        pool: What it asks.
        passes: Out of PASSES.
        concurrencies: Numbers of clients.
        repeats: How often each is measured.
        num_requests: Model calls of a cell, about so many; more where that would not give every client two.

    Raises:
        ConfigError: A number is below 1, or the task has too little for so many clients.
    """
    if min(repeats, num_requests, *concurrencies) < 1:
        raise ConfigError(
            f"repeats, requests and clients must be at least 1, got {repeats}, {num_requests} and {concurrencies}"
        )
    cells = []
    for repeat in range(repeats):
        for pass_name in passes:
            for concurrency in concurrencies:
                units = pool.draw(max(num_requests, 2 * concurrency), concurrency)
                learnt = pool.learnt if pass_name == "warm" else ()
                cells.append(Cell(task, pass_name, concurrency, repeat, learnt, units, pool.asked_before()))
    return cells
