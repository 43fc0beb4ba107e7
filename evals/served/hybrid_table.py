"""The tables of `agentspec bench hybrid`, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentspec.evals.served.hybrid_rows import OUTPUTS, WINDOW, best_single, goals

_TITLES = {
    "agents": "Text-to-SQL agents, other questions of the same databases asked before",
    "agents-cold": "Text-to-SQL agents, nothing learned yet",
    "open": "Open prompts",
    "mix": "Half agents, half open prompts in one batch",
    "change": "Agents, suddenly open prompts, agents again",
}
Rows = Sequence[Mapping[str, Any]]


def markdown(rows: Rows, *, command: str) -> str:
    """All tables. Ratios are relative to the fastest system with one way of drafting, on the same workload."""
    parts = [f"    {command}"]
    for workload in dict.fromkeys(row["workload"] for row in rows):
        parts.append(_workload(workload, [row for row in rows if row["workload"] == workload]))
    if any("windows" in row for row in rows):
        parts.append(_change([row for row in rows if "windows" in row]))
    checked = goals(rows)
    if checked:
        lines = ["| hybrid | measured | goal | |", "|---|---|---|---|"]
        for goal in checked:
            value = "not reached" if goal.value is None else f"{goal.value:g}"
            lines.append(
                f"| {goal.name} | {value} | {goal.comparison} {goal.bound:g} | {'met' if goal.is_met else 'missed'} |"
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _workload(workload: str, rows: Rows) -> str:
    best = best_single(rows, workload)
    lines = [
        f"## {_TITLES[workload]}",
        "",
        "| system | tokens/s | lowest to highest | of the best single | tokens a CPU second | accept length | "
        + "steps with drafter | outputs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["tokens_per_second"] is None:
            lines.append(f"| {row['system']} | failed: {_cell(row['error'])} | | | | | | |")
            continue
        speeds = row["tokens_per_second_runs"]
        ratio = f"{row['tokens_per_second'] / best['tokens_per_second']:.2f}" if best else ""
        name = f"**{row['system']}**" if best and row["system"] == best["system"] else row["system"]
        lines.append(
            f"| {name} | {row['tokens_per_second']:.0f} | {min(speeds):.0f} to {max(speeds):.0f} | {ratio} "
            f"| {row['tokens_per_cpu_second']:.0f} | {row['accept_length']:.2f} | {row['drafter_step_share']:.0%} | {OUTPUTS[row['identical']]} |"
        )
    return "\n".join(lines)


def _change(rows: Rows) -> str:
    """Accept length while the text changes."""
    kinds = [phase["kind"] for phase in rows[0]["windows"]]
    changes = [f"to {change['to']}" for change in rows[0]["recovered_after"]]
    lines = [
        f"Accept length of each {WINDOW} requests, and after how many requests {WINDOW} reach 90 % of the steady one:",
        "",
        f"| system | {' | '.join([*kinds, *changes])} |",
        "|---" * (1 + len(kinds) + len(changes)) + "|",
    ]
    for row in rows:
        shown = [" ".join(f"{value:.1f}" for value in phase["accept_lengths"]) for phase in row["windows"]]
        reached = [
            "not reached" if change["requests"] is None else str(change["requests"])
            for change in row["recovered_after"]
        ]
        lines.append(f"| {row['system']} | {' | '.join([*shown, *reached])} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")[:160]
