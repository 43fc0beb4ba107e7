"""What `agentspec eval` measures: cells of a task, each asked of every system.

    cold    the server forgets everything, then it is measured
    warm    the server forgets everything, learns from other units of the task, then it is measured

A cell is a pass with some number of clients, in one repeat. It begins with a flush, so that cells do not depend on each
other. A flush does not reset measured step times and corrections of estimates; therefore each repeat starts new
servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentspec.errors import ConfigError
from agentspec.evals.workloads.task import Pool, Unit

PASSES = ("cold", "warm")

Key = tuple[str, str, int, int]
"""Task, pass, number of clients, repeat."""


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """Units for `concurrency` clients, asked after the server has learnt from others. See `turns` for how they are
    divided."""

    task: str
    pass_name: str
    concurrency: int
    repeat: int
    learnt: tuple[Unit, ...]
    units: tuple[Unit, ...]
    asked_before: int
    """Number of calls that an earlier cell measured too, because the task has no others."""
    max_turns: int = 1

    @property
    def turns(self) -> list[tuple[Unit, ...]]:
        """The units in order, in at most `max_turns` parts of about equal size. A part has at least two units for each
        client, because some clients have nothing left to do at its end."""
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
    """The cells of a task in the order of measurement, repeat after repeat. They do not depend on what serves them.

    Args:
        task: Its name.
        pool: The units of the task.
        passes: Names out of PASSES.
        concurrencies: Numbers of clients.
        repeats: Number of times that each cell is measured.
        num_requests: Approximate number of model calls in a cell; more where every client would get fewer than
            `calls_a_client`.
        max_turns: Greatest number of parts in which a cell is asked.
        calls_a_client: Least number of model calls for each client. With few of them most clients are idle while
            the last ones wait for answers.

    Raises:
        ConfigError: A number is below 1, or the task has too few units for that many clients.
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
