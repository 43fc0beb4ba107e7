"""Rows of results of a real model: Qwen2.5-Coder, which answers by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agentspec.evals.page.row import Content, Files, Goal, Row, at_least, clients, mean
from agentspec.evals.page.served_rows import NAMES, Cell, called, cells, speed, told_speed
from agentspec.workflows.text_to_sql.sql.hardness import HARDNESS

_REAL_NAMES = {**NAMES, "fixed": "all that is drafted"}
_REAL_OURS = {"suffix": "suffix drafts", "hybrid-standalone": "hybrid with STANDALONE"}
# Goals for all cells of a task: the system, its rivals by name, and how the cells count.
_REAL_GOALS: Mapping[str, tuple[tuple[str, str, str, Callable[[Sequence[float]], float], float], ...]] = {
    "edits": (
        ("suffix", "none", "least x plain", min, 4.0),
        ("hybrid-standalone", "standalone", "mean x STANDALONE", mean, 1.5),
    ),
    "qwen_sql_agents": (("suffix", "ngram", "mean x NGRAM", mean, 1.1),),
}


def real_rows(files: Files) -> list[Row]:
    """A real model's own answers: ours beside each rival's best, and what agents do with them."""
    rows: list[Row] = []
    ratios: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    last: dict[str, str] = {}
    for name, content in files.items():
        if "stages" in content:
            rows += _sql_stages(name, content)
            continue
        for (task, pass_name, number), cell in cells(content["records"]).items():
            if task in _TOLD:
                rows += _TOLD[task](name, pass_name, cell)
                continue
            last[task] = name
            for system in [system for system in _REAL_OURS if system in cell]:
                of = speed(cell[system])
                best: dict[str, float] = {}
                for rival in [rival for rival in cell if rival not in _REAL_OURS]:
                    kind = rival.split("-")[0]
                    best[kind] = max(best.get(kind, 0.0), speed(cell[rival]))
                for kind, value in best.items():
                    ratios[task, system, kind].append(of / value)
                told = [called(rival) + " " + told_speed(cell[rival]) for rival in cell if rival not in _REAL_OURS]
                first = cell[system][0]
                same = ", answers differ" if first.get("identical") is False else ""
                shown = ", ".join(f"{of / value:.2f} x {_REAL_NAMES[kind]}" for kind, value in best.items())
                rows.append(
                    Row(
                        name,
                        f"{task}, {first['model']}, {pass_name}, {clients(number)}, {first['requests']} calls",
                        _REAL_OURS[system],
                        f"{told_speed(cell[system])} tokens/s: {shown}{same}",
                        ", ".join(told),
                    )
                )
    for task, name in last.items():
        for system, kind, what, over, goal in _REAL_GOALS.get(task, ()):
            if some := ratios[task, system, kind]:
                rows.append(
                    Row(name, f"{task}, all cells", _REAL_OURS[system], goals=(at_least(what, over(some), goal),))
                )
    return rows


def _tool_calls(name: str, pass_name: str, cell: Cell) -> Iterator[Row]:
    plain = cell["none"][0]
    for ours in [cell[system][0] for system in cell if system != "none"]:
        number, same, streamed = (ours[key] for key in ("requests", "answers_as_plain", "calls_streamed_as_whole"))
        yield Row(
            name,
            f"tool calls, {ours['model']}, {pass_name}, 1 client, {number} calls",
            {**_REAL_OURS, **_REAL_NAMES}[ours["system"]],
            f"{told_speed([ours])} tokens/s: {speed([ours]) / speed([plain]):.2f} x plain",
            f"plain {told_speed([plain])}",
            (Goal(f"as plain {same}, streamed as whole {streamed}, goals {number}", same == streamed == number),),
        )


def _coding_agent(name: str, pass_name: str, cell: Cell) -> Iterator[Row]:
    for ours in cell["suffix"]:
        yield Row(
            name,
            f"mini-swe-agent, {ours['model']}, {pass_name}, {ours['tasks']} tasks, {ours['requests']} calls",
            NAMES["suffix"],
            f"{told_speed([ours])} tokens/s; {ours['resolved']} of {ours['tasks']} tasks solved",
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
        name,
        f"text-to-SQL agents, {run}, {sum(figures['calls'] for figures in stages.values())} calls",
        NAMES["suffix"],
        f"accept length {after / steps:.2f}; {content['accuracy']:.0%} of {content['graded']} right: {parts}",
    )
    for stage, figures in stages.items():
        right = f", {figures['right']} of {figures['graded']} statements right" if "right" in figures else ""
        yield Row(
            name,
            f"text-to-SQL agents, stage {stage}, {figures['calls']} calls",
            NAMES["suffix"],
            f"accept length {figures['accept_length']:.2f}; {figures['prompt_mean']:.0f} and "
            f"{figures['completion_mean']:.0f} tokens a prompt and an answer, {figures['fallbacks']} fallbacks{right}",
        )
