"""A line of a table of results: what was measured, its baseline, and its goals.

Goals answer what someone asks who has not run agentspec: is it right, is it faster than the best that SGLang has, does it
harm where nothing repeats, what does it cost, and do the report, the store and the simulator hold what they promise. A
gain is judged once for a workload and a system, by the mean over all cells; harm is judged by the worst cell.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Content = Mapping[str, Any]
Files = Mapping[str, Content]
"""The contents of a topic's JSON files, by their names."""


CONTROLS = ("chat_mt_bench", "math_gsm8k")
"""Sets that repeat little; all others are of agents."""


class Goal(NamedTuple):
    """A goal for a figure."""

    text: str
    """What is compared, its value and the target."""
    met: bool


class Row(NamedTuple):
    """One measured figure."""

    file: str
    """The file of the topic that holds the figure, its command and its machine."""
    workload: str
    system: str
    figure: str = ""
    baseline: str = ""
    goals: tuple[Goal, ...] = ()


Reader = Callable[[Files], Iterable[Row]]
"""Makes the rows of a topic."""


def at_least(what: str, value: float, target: float) -> Goal:
    """A lower bound. The value is compared as it is shown, so that no hidden digit decides."""
    shown = f"{value:.2f}"
    return Goal(f"{what} {shown}, goal >= {target:g}", float(shown) >= target)


def at_most(what: str, value: float, target: float, unit: str = "") -> Goal:
    return Goal(f"{what} {short(value)}{unit}, goal <= {short(target)}{unit}", value <= target)


def mean(values: Iterable[float]) -> float:
    return float(statistics.fmean(values))


def clients(number: int) -> str:
    return "1 client" if number == 1 else f"{number} clients"


def short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    cells = ([cell.replace("|", "/").replace("\n", " ") for cell in row] for row in rows)
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in cells)]
