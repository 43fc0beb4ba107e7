"""Rows, tables and curves of simulated runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentspec.analysis.plots import Curve, svg

Row = Mapping[str, Any]

_COLORS = ("#c0392b", "#2c3e50", "#2980b9", "#27ae60", "#8e44ad", "#d35400", "#16a085", "#7f8c8d", "#b7950b", "#5d6d7e")
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
        key: {
            name: sum(row[name] for row in group) / len(group)
            for name, value in group[0].items()
            if isinstance(value, int | float) and name != "seed"
        }
        for key, group in groups.items()
    }


def markdown(content: Mapping[str, Any]) -> str:
    """A table of all figures. If there is a plain run, tables of speed-ups over it come first."""
    head, means = content["head"], averaged(content["rows"])
    arrivals = list(dict.fromkeys(form for form, _ in means))
    controllers = list(dict.fromkeys(name for _, name in means))
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    parts = [
        f"# Simulated serving: {head['acceptance']['name']} on {head['profile']['name']}",
        "",
        f"    {' '.join(head['command'])}",
        "",
        f"{versions}; {head['hardware']['processor']}. Profile: {head['profile']['note'] or head['profile']['device']}",
        "",
    ]
    if head.get("plain_service_rate"):
        parts += [f"Plain decoding serves {head['plain_service_rate']:.4g} requests a second (1x).", ""]
    if "fixed:0" in controllers:
        for title, figure, better in (
            ("Speed-up of mean latency over plain decoding", "latency_mean", -1),
            ("Goodput over plain decoding's", "goodput", 1),
        ):
            parts += [f"## {title}", "", *_table("arrivals", controllers)]
            for form in arrivals:
                base = means[form, "fixed:0"][figure]
                ratios = [(means[form, name][figure] / base) ** better for name in controllers]
                best = max(ratios)
                cells = [f"**{ratio:.3f}**" if ratio == best else f"{ratio:.3f}" for ratio in ratios]
                parts.append(f"| {form} | {' | '.join(cells)} |")
            parts.append("")
    shown = [name for name in _COLUMNS if name not in ("arrivals", "controller", "seed")]
    parts += ["## All figures", "", *_table("arrivals | controller", [_COLUMNS[name][0] for name in shown])]
    for (form, controller), figures in means.items():
        parts.append(f"| {form} | {controller} | {' | '.join(f'{figures[name]:.4g}' for name in shown)} |")
    return "\n".join([*parts, ""])


def plot(content: Mapping[str, Any]) -> str:
    """An SVG with one panel per kind of arrivals. The x axis is the first number of the arrivals. The y axis is the
    speed-up of mean latency over plain decoding, or mean latency if there is no plain run."""
    means = averaged(content["rows"])
    forms = list(dict.fromkeys(form for form, _ in means))
    controllers = list(dict.fromkeys(name for _, name in means))
    plain = "fixed:0" in controllers
    panels: dict[str, list[Curve]] = {}
    for title, group in _panels(forms).items():
        panels[title] = []
        for number, name in enumerate(controllers):
            points = []
            for x, form in group:
                seconds = means[form, name]["latency_mean"]
                points.append((x, means[form, "fixed:0"]["latency_mean"] / seconds if plain else seconds))
            panels[title].append(Curve(name, _COLORS[number % len(_COLORS)], points))
    y_title = "speed-up of mean latency over plain decoding" if plain else "mean latency, s"
    return svg(panels, "requests a second, or seconds between them", y_title)


def _panels(forms: Sequence[str]) -> dict[str, list[tuple[float, str]]]:
    """Arrivals by panel. Those that differ only in their first number share one."""
    panels: dict[str, list[tuple[float, str]]] = {}
    for form in forms:
        kind, first, *others = form.split(":")
        panels.setdefault(" ".join([kind, *others]), []).append((float(first.rstrip("x")), form))
    return panels


def _table(first: str, titles: Sequence[str]) -> list[str]:
    return [f"| {first} | {' | '.join(titles)} |", f"|{'---|' * (first.count('|') + 1 + len(titles))}"]
