"""Rows of results of a real model: Qwen2.5-Coder, which answers by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentspec.evals.page.row import Content, Files, Goal, Row, at_least, clients
from agentspec.evals.page.served_rows import NAMES, Cell, called, cells, speed, told_speed
from agentspec.workflows.text_to_sql.sql.hardness import HARDNESS

_REAL_NAMES = {**NAMES, "fixed": "all that is drafted"}
_REAL_OURS = {"suffix": "suffix drafts", "hybrid-standalone": "hybrid with STANDALONE"}
# The least ratio to the best of a rival's settings, by task, pass and system.
_REAL_GOALS = {
    ("edits", "cold", "suffix"): {"none": 4.0, "fixed": 0.9},
    ("edits", "warm", "suffix"): {"none": 4.0, "fixed": 0.9},
    ("edits", "cold", "hybrid-standalone"): {"standalone": 1.5},
    ("qwen_sql_agents", "warm", "suffix"): {"ngram": 1.1},
}


def real_rows(files: Files) -> list[Row]:
    """A real model's own answers: ours beside each rival's best, and what agents do with them."""
    rows: list[Row] = []
    for name, content in files.items():
        if "stages" in content:
            rows += _sql_stages(name, content)
            continue
        for (task, pass_name, number), cell in cells(content["records"]).items():
            if task in _TOLD:
                rows += _TOLD[task](name, pass_name, cell)
                continue
            for system in [system for system in _REAL_OURS if system in cell]:
                of = speed(cell[system])
                best: dict[str, float] = {}
                for rival in [rival for rival in cell if rival not in _REAL_OURS]:
                    kind = rival.split("-")[0]
                    best[kind] = max(best.get(kind, 0.0), speed(cell[rival]))
                goals = [
                    at_least(f"x {_REAL_NAMES[kind]}", of / best[kind], goal)
                    for kind, goal in _REAL_GOALS.get((task, pass_name, system), {}).items()
                    if kind in best
                ]
                told = [called(rival) + " " + told_speed(cell[rival]) for rival in cell if rival not in _REAL_OURS]
                first = cell[system][0]
                same = ", answers differ" if first.get("identical") is False else ""
                ratios = ", ".join(f"{of / value:.2f} x {_REAL_NAMES[kind]}" for kind, value in best.items())
                rows.append(
                    Row(
                        f"{task}, {first['model']}, {pass_name}, {clients(number)}, {first['requests']} calls",
                        _REAL_OURS[system],
                        f"{told_speed(cell[system])} tokens/s: {ratios}{same}",
                        ", ".join(told),
                        tuple(goals),
                        name,
                    )
                )
    return rows


def _tool_calls(name: str, pass_name: str, cell: Cell) -> Iterator[Row]:
    plain = cell["none"][0]
    for ours in [cell[system][0] for system in cell if system != "none"]:
        number, same, streamed = (ours[key] for key in ("requests", "answers_as_plain", "calls_streamed_as_whole"))
        yield Row(
            f"tool calls, {ours['model']}, {pass_name}, 1 client, {number} calls",
            {**_REAL_OURS, **_REAL_NAMES}[ours["system"]],
            f"{told_speed([ours])} tokens/s: {speed([ours]) / speed([plain]):.2f} x plain",
            f"plain {told_speed([plain])}",
            (
                Goal(f"answers as plain {same}, goal {number}", same == number),
                Goal(f"calls streamed as whole {streamed}, goal {number}", streamed == number),
            ),
            name,
        )


def _coding_agent(name: str, pass_name: str, cell: Cell) -> Iterator[Row]:
    for ours in cell["suffix"]:
        yield Row(
            f"mini-swe-agent, {ours['model']}, {pass_name}, {ours['tasks']} tasks, {ours['requests']} calls",
            NAMES["suffix"],
            f"{told_speed([ours])} tokens/s; {ours['resolved']} of {ours['tasks']} tasks solved",
            "",
            (),
            name,
        )


_TOLD: Mapping[str, Callable[[str, str, Cell], Iterator[Row]]] = {
    "tool_calls": _tool_calls,
    "mini_swe_agent": _coding_agent,
}


def _by_hardness(item: tuple[str, Any]) -> int:
    return HARDNESS.index(item[0]) if item[0] in HARDNESS else len(HARDNESS)


def _sql_stages(name: str, content: Content) -> Iterator[Row]:
    """A run of the text-to-SQL agents: what is right, and every stage."""
    stages: Mapping[str, Any] = {stage: figures for stage, figures in content["stages"].items() if figures["calls"]}
    run = f"{content['run']}, {clients(content['concurrency'])}"
    steps = sum(figures["verify_steps"] for figures in stages.values())
    after = sum(figures["accept_length"] * figures["verify_steps"] for figures in stages.values())
    parts = ", ".join(
        f"{difficulty} {part['accuracy']:.0%} of {part['graded']}"
        for difficulty, part in sorted(content["accuracy_by_difficulty"].items(), key=_by_hardness)
    )
    yield Row(
        f"text-to-SQL agents, {run}, {sum(figures['calls'] for figures in stages.values())} calls",
        NAMES["suffix"],
        f"accept length {after / steps:.2f}; {content['accuracy']:.0%} of {content['graded']} right: {parts}",
        "",
        (),
        name,
    )
    for stage, figures in stages.items():
        right = f", {figures['right']} of {figures['graded']} statements right" if "right" in figures else ""
        yield Row(
            f"text-to-SQL agents, stage {stage}, {figures['calls']} calls",
            NAMES["suffix"],
            f"accept length {figures['accept_length']:.2f}; {figures['prompt_mean']:.0f} and "
            f"{figures['completion_mean']:.0f} tokens a prompt and an answer, {figures['fallbacks']} fallbacks{right}",
            "",
            (),
            name,
        )
