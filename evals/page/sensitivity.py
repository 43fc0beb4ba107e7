"""How much the emulated figures depend on what is assumed: the table and the picture of emulated/sensitivity.json.

Every setting differs from the base in one thing: the EAGLE-3 head, the model, or a part of the step times. Plain decoding
and suffix drafts do not depend on the head, so a setting that lacks them has those of the same device with another head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from agentspec.evals.page.plot import THEMES, Theme, drawing, shown
from agentspec.evals.page.row import Files, Row, at_least, mean
from agentspec.evals.page.served_rows import SENSITIVITY as FILE
from agentspec.evals.page.served_rows import called, cells, speed

_PARTS = {
    "memory": "reading memory",
    "arithmetic": "arithmetic",
    "passes": "fixed time of a pass",
    "launches": "launches of the host",
    "small": "small kernels and copies",
}
_TASKS = {"swe_mini_agent": "coding agent", "sql_rsl_bird": "text-to-SQL"}
_HEADLESS = ("none", "suffix")
_SINGLE = ("suffix", "eagle3")


@dataclass(frozen=True, slots=True)
class Cell:
    """A setting's ratios of tokens a second in one task."""

    over_single: float
    """The hybrid over the best single system."""
    single: str
    """The system that is the best single one."""
    over_plain: float
    """The hybrid over plain decoding."""
    suffix_over_plain: float


@dataclass(frozen=True, slots=True)
class Setting:
    label: str
    head: float
    device: str
    is_head: bool
    """Whether it differs from the base in nothing but its head."""
    factors: Mapping[str, float]
    cells: Mapping[str, Cell]
    """By task; the complete ones."""


def settings(files: Files) -> list[Setting]:
    """The settings with at least one complete cell: heads by accept length, then the others in the order of the file."""
    content = files.get(FILE, {"records": []})
    records: Sequence[Mapping[str, Any]] = content["records"]
    found = []
    for name in dict.fromkeys(record["setting"] for record in records):
        some = [record for record in records if record["setting"] == name]
        device, head, factors = some[0]["emulated"], some[0]["head"], some[0]["factors"]
        measured = {record["system"] for record in some}
        others = [
            record
            for record in records
            if record["emulated"] == device and record["system"] in _HEADLESS and record["system"] not in measured
        ]
        complete = {
            task: cell
            for (task, _, _), systems in cells([*some, *others]).items()
            if (cell := _cell({system: speed(repeats) for system, repeats in systems.items()})) is not None
        }
        if complete:
            label = _label(device, head, factors, content["base"])
            is_head = not factors and device == content["base"]["emulated"]
            found.append(Setting(label, float(head), device, is_head, factors, complete))
    return sorted(found, key=lambda one: one.head if one.is_head else float("inf"))


def _cell(speeds: Mapping[str, float]) -> Cell | None:
    single = {system: value for system, value in speeds.items() if system.split("-")[0] in _SINGLE}
    if not {"none", "suffix", "hybrid"} <= set(speeds) or len(single) < len(_SINGLE):
        return None
    best = max(single, key=lambda system: single[system])
    hybrid, plain = speeds["hybrid"], speeds["none"]
    return Cell(hybrid / single[best], best, hybrid / plain, speeds["suffix"] / plain)


def _label(device: str, head: str, factors: Mapping[str, float], base: Mapping[str, str]) -> str:
    if factors:
        return ", ".join(f"{_PARTS[part]}, {_times(factor)}" for part, factor in factors.items())
    if device != base["emulated"]:
        return device
    return f"head {head}" + (", the base" if head == base["head"] else "")


def _times(factor: float) -> str:
    return {0.5: "half as long", 2.0: "twice as long"}.get(factor, f"{factor:g} times as long")


def block(files: Files, pictures: Mapping[str, str]) -> str:
    """The picture and the table in Markdown. `pictures`: their paths by theme."""
    found = settings(files)
    if not found:
        return "Not measured yet."
    tasks = [task for task in _TASKS if any(task in one.cells for one in found)]
    head = [f"{_TASKS[task]}: {what}" for task in tasks for what in _COLUMNS]
    lines = [f"| {' | '.join(['setting', *head])} |", f"|{'---|' * (len(head) + 1)}"]
    for one in found:
        lines.append(
            f"| {' | '.join([one.label, *(text for task in tasks for text in _columns(one.cells.get(task)))])} |"
        )
    told = f"The hybrid over the best single system and over plain SGLang, {len(found)} settings of the emulated device"
    picture = shown(pictures, f"{told}; the table below has the figures.")
    return "\n".join([*picture, "", *lines, "", f"[File](../evals/results/emulated/{FILE})."])


_COLUMNS = ("hybrid over the best single", "over plain", "suffix drafts over plain")


def _columns(cell: Cell | None) -> tuple[str, ...]:
    if cell is None:
        return ("",) * len(_COLUMNS)
    best = f"{cell.over_single:.2f} ({called(cell.single)})"
    return best, f"{cell.over_plain:.2f}", f"{cell.suffix_over_plain:.2f}"


def rows(files: Files) -> Iterator[Row]:
    """What all settings tell together: harm is judged by the worst cell."""
    found = settings(files)
    if not found:
        return
    ratios = [cell.over_single for one in found for cell in one.cells.values()]
    plain = [cell.over_plain for one in found for cell in one.cells.values()]
    yield Row(
        FILE,
        f"agents, {len(ratios)} cells in {len(found)} settings of the emulated device",
        "hybrid with EAGLE-3",
        f"{min(ratios):.2f} to {max(ratios):.2f} x the best single system, {mean(ratios):.2f} in the mean; "
        f"{min(plain):.2f} to {max(plain):.2f} x plain",
        goals=(at_least("least x the best single system", min(ratios), 0.99), at_least("least x plain", min(plain), 1)),
    )


_WIDTH, _HEIGHT, _TOP, _BOTTOM, _LEFT, _MIDDLE = 760, 360, 52, 40, 44, 330
_COLORS = {"swe_mini_agent": 4, "sql_rsl_bird": 2}
"""Places in the colours of a theme."""
_LABELS = 150
"""Width of the labels of the right panel."""


def svg(files: Files, theme: str) -> str | None:
    """The picture: by heads on the left, by devices on the right if there are any; None if there is nothing to draw. Filled
    points and lines are ratios to the best single system, hollow ones those to plain decoding."""
    found = settings(files)
    if not found:
        return None
    heads, others = ([one for one in found if one.is_head is wanted] for wanted in (True, False))
    top = max(cell.over_plain for one in found for cell in one.cells.values())
    colors = THEMES[theme]
    panels = [*_by_head(heads, int(top) + 1, _MIDDLE if others else _WIDTH - 12, colors)]
    if others:
        panels += _by_device(others, int(top) + 1, colors)
    return drawing(_WIDTH, _HEIGHT, colors, [*_legend(colors), *panels])


def _legend(colors: Theme) -> Iterator[str]:
    for row, (task, title) in enumerate(_TASKS.items()):
        for x, filled, what in ((_LEFT + 6, True, "the best single system"), (_MIDDLE + 60, False, "plain SGLang")):
            y = 12 + 18 * row
            yield _point(x, y, colors.colors[_COLORS[task]], filled)
            yield f'<text x="{x + 12}" y="{y + 4}">{escape(f"{title}: hybrid over {what}")}</text>'


def _by_head(heads: Sequence[Setting], top: int, right: int, colors: Theme) -> Iterator[str]:
    floor, high = _HEIGHT - _BOTTOM, _HEIGHT - _BOTTOM - _TOP

    def at(ratio: float) -> float:
        return floor - ratio / top * high

    for tick in range(top + 1):
        yield f'<path d="M{_LEFT} {at(tick):.1f}H{right}" stroke="{colors.lines}"/>'
        yield f'<text x="{_LEFT - 8}" y="{at(tick) + 4:.1f}" text-anchor="end">{tick}x</text>'
    yield f'<text x="{(_LEFT + right) / 2:.0f}" y="{_HEIGHT - 4}" text-anchor="middle">accept length of the head</text>'
    place = {one.head: _LEFT + 20 + n * (right - _LEFT - 40) / max(len(heads) - 1, 1) for n, one in enumerate(heads)}
    for head, x in place.items():
        yield f'<text x="{x:.1f}" y="{_HEIGHT - 22}" text-anchor="middle">{head:g}</text>'
    for task in _TASKS:
        color = colors.colors[_COLORS[task]]
        some = [(place[one.head], one.cells[task]) for one in heads if task in one.cells]
        for filled in (True, False):
            points = [(x, at(cell.over_single if filled else cell.over_plain)) for x, cell in some]
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            if len(points) > 1:
                dashes = "" if filled else ' stroke-dasharray="4 3"'
                yield f'<path d="M{path}" stroke="{color}" fill="none"{dashes}/>'
            yield from (_point(x, y, color, filled) for x, y in points)


def _by_device(others: Sequence[Setting], top: int, colors: Theme) -> Iterator[str]:
    left, high = _MIDDLE + _LABELS + 40, _HEIGHT - _BOTTOM - _TOP
    scale = (_WIDTH - left - 12) / top
    for tick in range(top + 1):
        x = left + tick * scale
        yield f'<path d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="{colors.lines}"/>'
        yield f'<text x="{x:.1f}" y="{_HEIGHT - 22}" text-anchor="middle">{tick}x</text>'
    for number, one in enumerate(others):
        y = _TOP + (number + 0.5) * high / len(others)
        told = ", ".join(f"{part} x {factor:g}" for part, factor in one.factors.items()) or one.device
        yield f'<text x="{left - 10}" y="{y + 4:.1f}" text-anchor="end">{escape(told)}</text>'
        for task, cell in one.cells.items():
            color = colors.colors[_COLORS[task]]
            yield _point(left + cell.over_single * scale, y, color, True)
            yield _point(left + cell.over_plain * scale, y, color, False)


def _point(x: float, y: float, color: str, filled: bool) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" stroke="{color}" fill="{color if filled else "none"}"/>'
