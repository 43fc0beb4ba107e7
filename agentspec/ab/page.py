"""The page of a comparison, in the dress of the report: one HTML file that loads nothing."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader

from agentspec.analysis.report.page import environment as report_environment
from agentspec.analysis.report.page import rendered
from agentspec.analysis.report.page_axis import Axis, linear

_TICKS = (0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_MOST_TICKS = 8
_SHOWN_TASKS = 400
_EQUAL = (1.0, "no difference")


def page(facts: Mapping[str, Any]) -> str:
    """The whole document, to be written as UTF-8. `facts`: those of `measures.facts_of`, with `version`, `created`,
    `command` and `workload`."""
    compared = [row for row in facts["figures"] if row["ratio"] is not None]
    tasks = facts["by_task"][:_SHOWN_TASKS]
    return rendered(
        _environment(),
        "ab.html",
        facts=facts,
        compared=compared,
        ratio_axis=_ratio_axis(compared) if compared else None,
        tasks=tasks,
        task_axis=_task_axis(tasks),
    )


@functools.cache
def _environment() -> Environment:
    """The report's environment, with this page's template before the report's."""
    own = PackageLoader("agentspec.ab")
    base = report_environment()
    assert base.loader is not None
    return base.overlay(loader=ChoiceLoader([own, base.loader]))


def _ratio_axis(rows: Sequence[Mapping[str, Any]]) -> Axis:
    """A logarithmic axis around 1 with room for all intervals."""
    values = [row[key] for row in rows for key in ("ratio", "low", "high") if row[key] is not None]
    # One figure with a huge interval must not squeeze the others.
    low, high = max(min([*values, 0.9]), 0.1), min(max([*values, 1.1]), 10.0)
    low, high = low / 1.05, high * 1.05
    room = math.log(high / low) / _MOST_TICKS
    ticks: list[float] = []
    # From 1 outwards, so that 1 always has its tick.
    for tick in sorted(_TICKS, key=lambda tick: abs(math.log(tick))):
        if low <= tick <= high and all(abs(math.log(tick / other)) >= room for other in ticks):
            ticks.append(tick)
    return Axis(
        title="times better on B",
        low=low,
        high=high,
        ticks=sorted(ticks),
        logarithmic=True,
        reference=_EQUAL,
        suffix="×",
    )


def _task_axis(tasks: Sequence[Mapping[str, Any]]) -> Axis | None:
    values = [task[label] for task in tasks for label in ("a", "b")]
    return linear("seconds", [value for value in values if math.isfinite(value)]) if len(tasks) > 2 else None
