"""Rows and tables of simulated runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

_KEYS = ("arrivals", "controller", "seed")
# figure -> (title, format)
_COLUMNS = {
    "arrivals": ("arrivals", "<22"),
    "controller": ("controller", "<14"),
    "seed": ("seed", ">4"),
    "latency_mean": ("latency s", ">10.4g"),
    "latency_p50": ("p50", ">8.4g"),
    "latency_p99": ("p99", ">8.4g"),
    "ttft_mean": ("TTFT s", ">8.3g"),
    "tpot_mean": ("TPOT s", ">8.3g"),
    "queueing_mean": ("queue s", ">8.3g"),
    "goodput": ("goodput", ">9.5g"),
    "throughput": ("tokens/s", ">9.5g"),
    "rows_mean": ("rows", ">7.4g"),
    "width_mean": ("width", ">6.3g"),
    "accept_length": ("accepted", ">9.4g"),
    "retractions": ("retracted", ">9"),
}


def row_line(row: Row | None, columns: Mapping[str, tuple[str, str]] = _COLUMNS) -> str:
    """One row as a line of text, by its keys' titles and formats; None gives the header."""
    cells = []
    for name, (title, form) in columns.items():
        value = title if row is None else row[name]
        is_number = isinstance(value, int | float)
        cells.append(f"{'-' if value is None else value:{form if is_number else form.split('.')[0]}}")
    return " ".join(cells).rstrip()


def averaged(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, float]]:
    """The mean of each figure over seeds, by arrivals and controller."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["arrivals"], row["controller"]), []).append(row)
    return {
        key: {name: sum(row[name] for row in group) / len(group) for name in _COLUMNS if name not in _KEYS}
        for key, group in groups.items()
    }


def markdown(content: Mapping[str, Any]) -> str:
    """A table of all figures, with the speed-up of mean latency over plain decoding if there is a plain run."""
    head, means = content["head"], averaged(content["rows"])
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    titles = ["arrivals", "controller", "speed-up", *(_COLUMNS[name][0] for name in _COLUMNS if name not in _KEYS)]
    lines = [
        f"# Simulated serving: {head['acceptance']['name']} on {head['profile']['name']}",
        "",
        f"    {' '.join(head['command'])}",
        "",
        f"{versions}; {head['hardware']['processor']}. Profile: {head['profile']['note'] or head['profile']['device']}",
        "",
        f"| {' | '.join(titles)} |",
        "|---" * len(titles) + "|",
    ]
    for (form, controller), figures in means.items():
        plain = means.get((form, "fixed:0"))
        gain = f"{plain['latency_mean'] / figures['latency_mean']:.3f}" if plain else "-"
        shown = [form, controller, gain, *(f"{value:.4g}" for value in figures.values())]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join([*lines, ""])
