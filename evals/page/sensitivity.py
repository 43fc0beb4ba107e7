"""How much the gains depend on what is assumed: the table and the picture of emulated/sensitivity.json.

Every setting differs from the base in one thing: the draft model, the served model, or a part of the step times. Plain
decoding and suffix drafts do not depend on the draft model, so a setting that lacks them has those of the base.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from agentspec.evals.page.plot import THEMES, drawing, shown
from agentspec.evals.page.row import CONTROLS, Content, Files, Row, at_least, markdown, mean
from agentspec.evals.page.served_rows import NAMES
from agentspec.evals.page.served_rows import SENSITIVITY as FILE

_PARTS = {"memory": "reading memory", "arithmetic": "arithmetic", "passes": "fixed time of a pass"}
_TIMES = {0.5: "half as long", 2.0: "twice as long"}
_HEADS = {"published": "a head by the published curve", "recorded": "a recorded draft model"}
_GROUPS = {False: "agents", True: "controls"}
"""By whether a task is a control."""
_SINGLE = ("ngram", "eagle3", "suffix")
_WITH_HEAD = ("eagle3", "hybrid")


@dataclass(frozen=True, slots=True)
class Cell:
    """A setting's ratios of tokens a second in one task with some number of clients."""

    is_control: bool
    clients: int
    over_single: float
    """The hybrid over the best single system: suffix drafts, EAGLE-3 or NGRAM, each at its best."""
    over_plain: float
    """The hybrid over plain decoding."""
    suffix_over_plain: float


@dataclass(frozen=True, slots=True)
class Setting:
    label: str
    cells: Sequence[Cell]

    def of(self, is_control: bool) -> list[Cell]:
        return [cell for cell in self.cells if cell.is_control is is_control]


def _content(files: Files) -> Content:
    return files.get(FILE, {"base": {}, "records": []})


def settings(files: Files) -> list[Setting]:
    """The settings in the order of the file, heads by accept length first."""
    content = _content(files)
    speeds: dict[str, dict[tuple[str, int], dict[str, float]]] = {}
    first: dict[str, Mapping[str, Any]] = {}
    for record in content["records"]:
        first.setdefault(record["setting"], record)
        cell = speeds.setdefault(record["setting"], {}).setdefault((record["task"], record["clients"]), {})
        cell[record["system"]] = record["tokens_per_second"]
    return [
        Setting(
            _label(first[name], content["base"]),
            [_cell(*key, _whole(cell, speeds["base"].get(key, {}))) for key, cell in speeds[name].items()],
        )
        for name in sorted(speeds, key=lambda name: _order(first[name], content["base"]))
    ]


def _whole(speeds: Mapping[str, float], base: Mapping[str, float]) -> Mapping[str, float]:
    """All systems of a cell: where only the head differs, those without a head are the base's."""
    if "none" in speeds:
        return speeds
    return {**{name: speed for name, speed in base.items() if not name.startswith(_WITH_HEAD)}, **speeds}


def _cell(task: str, clients: int, speeds: Mapping[str, float]) -> Cell:
    single = max(speed for system, speed in speeds.items() if system.split("-")[0] in _SINGLE)
    [hybrid] = [speed for system, speed in speeds.items() if system.startswith("hybrid")]
    plain = speeds["none"]
    return Cell(task in CONTROLS, clients, hybrid / single, hybrid / plain, speeds["suffix"] / plain)


def _order(record: Mapping[str, Any], base: Mapping[str, str]) -> float:
    """The place of a setting: heads by their number, then the others in the order of the file."""
    is_head = not record["factors"] and record["emulated"] == base["emulated"] and record["head"] not in _HEADS
    return float(record["head"]) if is_head else float("inf")


def _label(record: Mapping[str, Any], base: Mapping[str, str]) -> str:
    if record["factors"]:
        return ", ".join(f"{_PARTS[part]} takes {_TIMES[factor]}" for part, factor in record["factors"].items())
    if record["emulated"] != base["emulated"]:
        return str(record["emulated"])
    if record["head"] in _HEADS:
        return _HEADS[record["head"]]
    return f"head {record['head']}" + (", the base" if record["head"] == base["head"] else "")


def block(files: Files, pictures: Mapping[str, str]) -> str:
    """The picture and the table in Markdown. `pictures`: their paths by theme."""
    found = settings(files)
    if not found:
        return "Not measured yet."
    clients = sorted({cell.clients for one in found for cell in one.cells})
    told = " / ".join(map(str, clients))
    head = ["setting"]
    for group in _GROUPS.values():
        head += [f"{group}: hybrid over the best single, mean (least to most)"]
        head += [f"{group}: {what} over plain, {told} clients" for what in ("hybrid", "suffix drafts")]
    lines = []
    for one in found:
        columns = [one.label]
        for is_control in _GROUPS:
            cells = one.of(is_control)
            columns += [_range([cell.over_single for cell in cells])]
            for of in ("over_plain", "suffix_over_plain"):
                if not cells:
                    columns.append("")
                    continue
                of_clients = [[getattr(cell, of) for cell in cells if cell.clients == n] for n in clients]
                columns += [" / ".join(f"{mean(some):.2f}" if some else "–" for some in of_clients)]
        lines.append(columns)
    alternative = f"The hybrid over the best single system in {len(found)} settings; the table has the figures."
    parts = [*shown(pictures, alternative), "", *markdown(head, lines), "", *_by_task(_content(files)), ""]
    return "\n".join([*parts, f"[File](../evals/results/emulated/{FILE})."])


def _by_task(content: Content) -> list[str]:
    """The table of the base's cells: each system's tokens a second over those of plain decoding."""
    cells: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for record in content["records"]:
        if record["setting"] == "base":
            cells.setdefault((record["task"], record["clients"]), {})[record["system"]] = record
    kinds = ("ngram", "eagle3", "suffix", "hybrid")
    titles = ["task", "clients", "plain, tokens/s", *(NAMES[kind] for kind in kinds), "hybrid over the best single"]
    lines = []
    for (task, clients), systems in cells.items():
        best = {
            kind: max((one for one in systems.values() if one["system"].startswith(kind)), key=_speed, default=None)
            for kind in kinds
        }
        plain = _speed(systems["none"])
        columns = [task, str(clients), f"{plain:,.0f}"]
        columns += ["" if one is None else f"{_speed(one) / plain:.2f} ({_drafted(one)})" for one in best.values()]
        single = max(_speed(one) for kind, one in best.items() if one is not None and kind in _SINGLE)
        columns.append("" if best["hybrid"] is None else f"{_speed(best['hybrid']) / single:.2f}")
        lines.append(columns)
    return markdown(titles, lines)


def _speed(record: Mapping[str, Any]) -> float:
    return float(record["tokens_per_second"])


def _drafted(record: Mapping[str, Any]) -> str:
    """The accept length, and the number of tokens or passes of a system that has one."""
    _, _, number = record["system"].partition("-")
    return f"{record['accept_length']:.2f}" + (f", {number}" if number else "")


def _range(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else ""


def rows(files: Files) -> Iterator[Row]:
    """What all settings tell together: harm is judged by the worst cell."""
    found = settings(files)
    for is_control, group in _GROUPS.items():
        cells = [cell for one in found for cell in one.of(is_control)]
        if not cells:
            continue
        ratios, plain = ([getattr(cell, of) for cell in cells] for of in ("over_single", "over_plain"))
        harmed = sum(ratio < 0.99 for ratio in ratios)
        yield Row(
            FILE,
            f"{group}, {len(cells)} cells in {len(found)} settings of an event clock",
            "hybrid with EAGLE-3",
            f"{_range(ratios)} x the best single system, below 0.99 in {harmed}; {_range(plain)} x plain",
            goals=(
                at_least("least x the best single system", min(ratios), 0.99),
                at_least("mean x the best single system", mean(ratios), 1.0),
                at_least("least x plain", min(plain), 1.0),
            ),
        )


_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 760, 250, 740, 44, 24
_COLORS = {False: 4, True: 2}
"""Places in the colours of a theme, by whether a task is a control."""


def svg(files: Files, theme: str) -> str | None:
    """The picture; None if there is nothing to draw. In each setting a line from the worst to the best ratio to the best single
    system, and a point at the mean, for agents and for controls."""
    found = settings(files)
    if not found:
        return None
    colors = THEMES[theme]
    ratios = [cell.over_single for one in found for cell in one.cells]
    low, high = int(min(ratios) * 10) / 10, -int(-max(ratios) * 10) / 10 + 0.1
    bottom = _TOP + _ROW * len(found)

    def at(ratio: float) -> float:
        return _LEFT + (ratio - low) / (high - low) * (_RIGHT - _LEFT)

    parts = []
    for is_control, group in _GROUPS.items():
        x = _LEFT + 130 * is_control
        parts.append(f'<circle cx="{x}" cy="14" r="4" fill="{colors.colors[_COLORS[is_control]]}"/>')
        parts.append(f'<text x="{x + 10}" y="18">{group}</text>')
    for step in range(round((high - low) * 10) + 1):
        ratio = low + step / 10
        width = 2 if abs(ratio - 1.0) < 1e-9 else 1
        parts.append(
            f'<path d="M{at(ratio):.1f} {_TOP - 12}V{bottom}" stroke="{colors.lines}" stroke-width="{width}"/>'
        )
        if step % 2 == round((1.0 - low) * 10) % 2:
            parts.append(f'<text x="{at(ratio):.1f}" y="{bottom + 18}" text-anchor="middle">{ratio:.1f}x</text>')
    for number, one in enumerate(found):
        y = _TOP + _ROW * number
        parts.append(f'<text x="{_LEFT - 12}" y="{y + 6}" text-anchor="end">{escape(one.label)}</text>')
        for is_control in _GROUPS:
            if values := [cell.over_single for cell in one.of(is_control)]:
                color, place = colors.colors[_COLORS[is_control]], y + (6 if is_control else -2)
                parts.append(f'<path d="M{at(min(values)):.1f} {place}H{at(max(values)):.1f}" stroke="{color}"/>')
                parts.append(f'<circle cx="{at(mean(values)):.1f}" cy="{place}" r="4" fill="{color}"/>')
    return drawing(_WIDTH, bottom + 28, colors, parts)
