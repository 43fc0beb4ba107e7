"""Rows of results of a real model: Qwen2.5-Coder, which answers by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from agentspec.evals.page.row import Files, Row, at_least, clients, mean
from agentspec.evals.page.served_rows import NAMES, called, cells, speed, told_speed

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
        for (task, pass_name, number), cell in cells(content["records"]).items():
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
                        f"{task}, {first['model']}, {pass_name}, {clients(number)}, {first['requests']} calls",
                        _REAL_OURS[system],
                        f"{told_speed(cell[system])} tokens/s: {shown}{same}",
                        ", ".join(told),
                        (),
                        name,
                    )
                )
    for task, name in last.items():
        for system, kind, what, over, goal in _REAL_GOALS.get(task, ()):
            if some := ratios[task, system, kind]:
                rows.append(
                    Row(f"{task}, all cells", _REAL_OURS[system], "", "", (at_least(what, over(some), goal),), name)
                )
    return rows
