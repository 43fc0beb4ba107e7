"""Rows, tables and curves of simulated runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError

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


def draw(content: Mapping[str, Any], path: Path) -> None:
    """Draws mean latencies to a .png or .svg file, in a panel for each kind of arrivals: those that differ only in their
    first number, which is the x axis. Raises ConfigError if the file's ending is none of a picture, or matplotlib is not
    installed."""
    if path.suffix not in (".png", ".svg"):
        raise ConfigError(f"a picture's file must end in .png or .svg, got {path}")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("drawing needs matplotlib; `pip install 'sglang-agentspec[plots]'`") from error
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for (form, controller), figures in averaged(content["rows"]).items():
        kind, first, *others = form.split(":")
        curves = panels.setdefault(" ".join([kind, *others]), {})
        curves.setdefault(controller, []).append((float(first.rstrip("x")), figures["latency_mean"]))
    # Omit the date and random ids, so that equal figures give equal files.
    with rc_context({"svg.hashsalt": "agentspec", "svg.fonttype": "none"}):
        figure = Figure(figsize=(5 * len(panels), 4.2), layout="constrained")
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, curves) in zip(all_axes, panels.items(), strict=True):
            for name, points in curves.items():
                axes.plot(*zip(*points, strict=True), marker=".", label=name)
            axes.set(title=title, xlabel="requests a second, or seconds between them", ylabel="mean latency, s")
            axes.legend()
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
