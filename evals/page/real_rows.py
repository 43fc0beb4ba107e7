"""Rows of results of a real model: Qwen2.5-Coder, which answers by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from agentspec.evals.page.row import Content, Files, Goal, Row, at_least, clients, mean
from agentspec.evals.page.served_rows import NAMES, Cell, called, cells, speed, told_speed
from agentspec.workflows.text_to_sql.sql.hardness import HARDNESS

_SINGLE = "single"
_REAL_NAMES = {**NAMES, "fixed": "all that is drafted", _SINGLE: "the best single system"}
_REAL_OURS = {"suffix": "suffix drafts", "hybrid-standalone": "hybrid with STANDALONE"}


class _Bar(NamedTuple):
    """A goal for cells of a task."""

    system: str
    rival: str
    """A kind of systems, or _SINGLE: all that draft in one way, suffix drafts among them."""
    over: Callable[[Sequence[float]], float]
    """How the cells count."""
    times: float
    cells: tuple[str, int] | None = None
    """The pass and the number of clients; None: all cells."""

    @property
    def what(self) -> str:
        return f"{'least' if self.over is min else 'mean'} x {_REAL_NAMES[self.rival]}"


_REAL_GOALS: Mapping[str, tuple[_Bar, ...]] = {
    "edits": (_Bar("suffix", "none", min, 4.0), _Bar("hybrid-standalone", "standalone", mean, 1.5)),
    "qwen_sql_agents": (
        _Bar("suffix", "ngram", mean, 1.1, ("warm", 1)),
        _Bar("hybrid-standalone", _SINGLE, mean, 1.0, ("warm", 1)),
    ),
}


def real_rows(files: Files) -> Iterator[Row]:
    """A real model's own answers: ours beside each rival's best, and what agents do with them."""
    ratios: list[tuple[str, str, str, tuple[str, int], float]] = []
    last: dict[str, str] = {}
    for name, content in files.items():
        if "stages" in content:
            yield from _sql_stages(name, content)
            continue
        for (task, pass_name, number), cell in cells(content["records"]).items():
            if task in _TOLD:
                yield from _TOLD[task](name, pass_name, cell)
                continue
            last[task] = name
            told = [called(rival) + " " + told_speed(cell[rival]) for rival in cell if rival not in _REAL_OURS]
            for system in [system for system in _REAL_OURS if system in cell]:
                of, first = speed(cell[system]), cell[system][0]
                best = _best(cell, system)
                ratios += [(task, system, kind, (pass_name, number), of / value) for kind, value in best.items()]
                same = ", answers differ" if first.get("identical") is False else ""
                times = [f"{of / value:.2f} x {_REAL_NAMES[kind]}" for kind, value in best.items()]
                shown = ": " * bool(best) + ", ".join(times)
                where = f"{task}, {first['model']}, {pass_name}, {clients(number)}, {first['requests']} calls"
                figure = f"{told_speed(cell[system])} tokens/s{shown}{same}"
                yield Row(name, where, _REAL_OURS[system], figure, ", ".join(told), _as_plain(cell, first))
    for task, name in last.items():
        for bar in _REAL_GOALS.get(task, ()):
            some = [
                ratio
                for of_task, system, kind, cell_key, ratio in ratios
                if (of_task, system, kind) == (task, bar.system, bar.rival) and bar.cells in (None, cell_key)
            ]
            if some:
                where = "all cells" if bar.cells is None else f"{bar.cells[0]}, {clients(bar.cells[1])}, all cells"
                goal = at_least(bar.what, bar.over(some), bar.times)
                yield Row(name, f"{task}, {where}", _REAL_OURS[bar.system], goals=(goal,))


def _best(cell: Cell, system: str) -> dict[str, float]:
    """The best speed of each kind of rivals. Where the draft model drafts alone too, the hybrid is compared with all single
    systems, suffix drafts among them."""
    best: dict[str, float] = {}
    for rival in [rival for rival in cell if rival not in _REAL_OURS]:
        kind = rival.split("-")[0]
        best[kind] = max(best.get(kind, 0.0), speed(cell[rival]))
    if system == "hybrid-standalone" and "suffix" in cell and "standalone" in best:
        best[_SINGLE] = max(speed(cell["suffix"]), *best.values())
    return best


def _as_plain(cell: Cell, ours: Mapping[str, Any]) -> tuple[Goal, ...]:
    """In float32, no step may change a token."""
    if "none" not in cell or "float32" not in ours["server_arguments"]:
        return ()
    same = ours["identical"] is True
    return (Goal("answers are plain SGLang's in float32" if same else "answers differ from plain SGLang's", same),)


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
    """A run of the text-to-SQL agents: what is accepted in each stage, and what is right."""
    stages: Mapping[str, Any] = {stage: figures for stage, figures in content["stages"].items() if figures["calls"]}
    run = f"{content['run']}, {clients(content['concurrency'])}"
    steps = sum(figures["verify_steps"] for figures in stages.values())
    after = sum(figures["accept_length"] * figures["verify_steps"] for figures in stages.values())
    parts = ", ".join(
        f"{difficulty} {part['accuracy']:.0%} of {part['graded']}"
        for difficulty, part in sorted(content["accuracy_by_difficulty"].items(), key=_by_hardness)
    )
    by_stage = ", ".join(f"{stage} {figures['accept_length']:.2f}" for stage, figures in stages.items())
    yield Row(
        name,
        f"text-to-SQL agents, {run}, {sum(figures['calls'] for figures in stages.values())} calls",
        NAMES["suffix"],
        f"accept length {after / steps:.2f}: {by_stage}; {content['accuracy']:.0%} of {content['graded']} right: {parts}",
    )
