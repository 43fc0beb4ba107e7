"""The rows, goals, table and plot of `agentspec bench load`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentspec.evals.files import drawing
from agentspec.evals.run.phases import SliceResult
from agentspec.evals.served.hybrid_rows import OUTPUTS, Goal, accept_length

OPEN_BOUND, AGENTS_BOUND = 0.98, 1.0
Rows = Sequence[Mapping[str, Any]]
_COLORS = {"none": "black", "agentspec": "tab:red"}
_TITLES = {"open": "Open prompts", "agents": "Text-to-SQL agents, other questions of the same databases asked before"}


def speeds(turns: Sequence[SliceResult]) -> list[float]:
    """Tokens a second of each turn, from its first request to its last answer."""
    return [sum(call.tokens for call in one.calls) / max(call.ended for call in one.calls) for one in turns]


def load_row(
    workload: str,
    system: str,
    concurrency: int,
    turns: Sequence[SliceResult],
    *,
    identical: bool | None,
    error: str = "",
) -> dict[str, Any]:
    """The row of a system with some number of clients; without a turn all figures are None.

    Args:
        workload: "open" or "agents".
        system: Its name in the bench.
        concurrency: Number of clients.
        turns: In order.
        identical: Whether all outputs equal those of plain decoding; None if those are unknown.
        error: Why turns are missing.
    """
    row: dict[str, Any] = {"workload": workload, "system": system, "concurrency": concurrency}
    names = ("tokens_per_second", "tokens_per_cpu_second", "accept_length", "verified_width")
    if not turns:
        return {**row, **dict.fromkeys(names), "identical": identical, "error": error}
    calls = [call for one in turns for call in one.calls]
    tokens, steps = sum(call.tokens for call in calls), sum(call.steps for call in calls)
    seconds = sum(max(call.ended for call in one.calls) for one in turns)
    verified = sum(one.verified_tokens for one in turns)
    return {
        **row,
        "tokens_per_second": round(tokens / seconds, 1),
        "tokens_per_cpu_second": round(tokens / max(sum(one.cpu_seconds for one in turns), 1e-3), 1),
        "accept_length": round(accept_length(calls), 3),
        "verified_width": round(verified / steps, 2) if verified else 1.0,
        "identical": identical,
        "requests": len(calls),
        "tokens": tokens,
        "seconds": round(seconds, 2),
        "tokens_per_second_turns": [round(speed, 1) for speed in speeds(turns)],
    }


def ratio(row: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Speed relative to another system: the median over turns. Both systems were asked the same in each turn."""
    pairs = zip(row["tokens_per_second_turns"], other["tokens_per_second_turns"], strict=True)
    return round(statistics.median(float(ours) / float(theirs) for ours, theirs in pairs), 3)


def find(rows: Rows, workload: str, concurrency: int) -> dict[str, Mapping[str, Any]]:
    """The rows that have figures, by system."""
    return {
        row["system"]: row
        for row in rows
        if (row["workload"], row["concurrency"]) == (workload, concurrency) and row["tokens_per_second"] is not None
    }


def best_fixed(systems: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The fastest of the systems with a fixed length; None without one."""
    names = [name for name in systems if name.startswith("fixed-")]
    return max(names, key=lambda name: float(systems[name]["tokens_per_second"]), default=None)


def goals(rows: Rows) -> list[Goal]:
    """The goals that the rows allow to check, all of them for the system `agentspec`."""
    found = []
    for workload, concurrency in dict.fromkeys((row["workload"], row["concurrency"]) for row in rows):
        systems = find(rows, workload, concurrency)
        bound = OPEN_BOUND if workload == "open" else AGENTS_BOUND
        others = ["none", *([best] if workload == "agents" and (best := best_fixed(systems)) else [])]
        found += [
            Goal(
                f"{workload}, {concurrency} at a time: tokens/s over {other}",
                ratio(systems["agentspec"], systems[other]),
                ">=",
                bound,
            )
            for other in others
            if {"agentspec", other} <= set(systems)
        ]
    return found


def markdown(rows: Rows, *, command: str) -> str:
    """A table for each workload. Ratios are relative to plain decoding, medians over turns."""
    parts = [f"    {command}"]
    for workload in dict.fromkeys(row["workload"] for row in rows):
        lines = [
            f"## {_TITLES[workload]}",
            "",
            "| at a time | system | tokens/s | of plain | tokens a CPU second | of plain | accept length | verified a row | outputs |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for row in rows:
            if row["workload"] != workload:
                continue
            first = f"| {row['concurrency']} | {row['system']} |"
            if row["tokens_per_second"] is None:
                lines.append(f"{first} failed: {row['error'].replace('|', '/')[:160]} | | | | | | |")
                continue
            plain = find(rows, workload, row["concurrency"]).get("none")
            wall = f"{ratio(row, plain):.3f}" if plain else ""
            cpu = f"{row['tokens_per_cpu_second'] / plain['tokens_per_cpu_second']:.3f}" if plain else ""
            lines.append(
                f"{first} {row['tokens_per_second']:.0f} | {wall} | {row['tokens_per_cpu_second']:.0f} | {cpu} "
                f"| {row['accept_length']:.2f} | {row['verified_width']:.2f} | {OUTPUTS[row['identical']]} |"
            )
        parts.append("\n".join(lines))
    lines = ["| agentspec | measured | goal | |", "|---|---|---|---|"]
    for goal in goals(rows):
        lines.append(f"| {goal.name} | {goal.value:.3f} | >= {goal.bound:g} | {'met' if goal.is_met else 'missed'} |")
    return "\n\n".join([*parts, "\n".join(lines)])


def plot(rows: Rows, path: Path) -> None:
    """Draws tokens a second over clients, a panel for each workload; to a .png or .svg file.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    with drawing(path, (5 * len(workloads), 4)) as figure:
        panels = figure.subplots(1, len(workloads), squeeze=False)[0]
        for axes, workload in zip(panels, workloads, strict=True):
            for system in dict.fromkeys(row["system"] for row in rows):
                points = [
                    (row["concurrency"], row["tokens_per_second"])
                    for row in rows
                    if (row["workload"], row["system"]) == (workload, system) and row["tokens_per_second"] is not None
                ]
                if points:
                    axes.plot(*zip(*points, strict=True), marker="o", label=system, color=_COLORS.get(system))
            axes.set(xlabel="requests at a time", ylabel="tokens/s", xscale="log", title=workload)
            ticks = sorted({row["concurrency"] for row in rows})
            axes.set_xticks(ticks, labels=[str(tick) for tick in ticks], minor=False)
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
        panels[0].legend()
