"""Plots as inline SVG that keep the size of their text at any width.

Places are per cent of the plot, so nothing is scaled but the distances; shapes that know no per cent, lines through
points and the band around them, lie in an inner picture that is stretched. Each plot is one image for a screen reader,
described by `alt`; its numbers stand in the table beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentspec.report.page_axis import Axis
from agentspec.report.page_markup import Content, Markup, element

_MIDDLE = 13.0
"""Of a row's track, which is 26 pixels high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A shape on a row's track, from `start` to `end` in the axis's unit; dots are at `start`.

    `series` is a class of page_style.css and says its colour and texture; `lane` is how far below the track's middle it
    lies, in pixels.
    """

    shape: Literal["bar", "range", "segment", "whisker", "dot", "ring"]
    start: float
    end: float = 0.0
    series: str = "first"
    label: str = ""
    lane: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A labelled track; `heading` opens a group of rows above it."""

    label: Content
    value: Content
    marks: Sequence[Mark]
    heading: str = ""


def rows_plot(rows: Sequence[Row], axis: Axis, alt: str) -> Markup:
    """Rows below each other over one axis."""
    grid = [_tick_line(axis, tick, "grid") for tick in axis.ticks]
    if axis.reference:
        grid.append(_tick_line(axis, axis.reference[0], "reference"))
    drawn: list[Markup] = []
    for row in rows:
        if row.heading:
            drawn.append(element("div", row.heading, class_="rows-heading"))
        shapes = [_shape(mark, axis) for mark in row.marks]
        drawn.append(
            element(
                "div",
                element("span", row.label, class_="row-label"),
                element("span", row.value, class_="row-value"),
                element("svg", grid, shapes, class_="track"),
                class_="row",
            )
        )
    ticks = [element("text", axis.tick(tick), x=_percent(axis.at(tick)), y=14.0, class_="tick") for tick in axis.ticks]
    notes = [axis.title]
    if axis.reference:
        notes.append(f"dashed line: {axis.reference[1]}")
    drawn.append(
        element(
            "div",
            element("svg", ticks, class_="track ticks"),
            element("span", " · ".join(notes), class_="axis-title"),
            class_="row axis",
        )
    )
    return element("div", drawn, class_="rows", role="img", aria_label=alt)


@dataclass(frozen=True, slots=True)
class Point:
    """A mean with its bounds, which may be unknown."""

    x: float
    y: float
    low: float | None
    high: float | None


def curve(points: Sequence[Point], x: Axis, y: Axis, alt: str) -> Markup:
    """Points joined by a line, with a band where they have bounds."""
    grid = [_rule(y, tick, "grid") for tick in y.ticks]
    if y.reference:
        grid.append(_rule(y, y.reference[0], "reference"))
    line = " ".join(_place(x, y, point.x, point.y) for point in points)
    bounded = [(point.x, point.low, point.high) for point in points if point.low is not None and point.high is not None]
    band = [_place(x, y, at, high) for at, _, high in bounded] + [_place(x, y, at, low) for at, low, _ in bounded[::-1]]
    stretched = element(
        "svg",
        element("polygon", points=" ".join(band), class_="band") if len(bounded) > 1 else None,
        element("polyline", points=line, class_="line"),
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        width="100%",
        height="100%",
        class_="stretched",
    )
    dots = [
        element("circle", cx=_percent(x.at(point.x)), cy=_percent(100 - y.at(point.y)), r=4.0, class_="dot first")
        for point in points
    ]
    labels = [
        element("text", x.tick(tick), x=_percent(x.at(tick)), y="100%", dy=18.0, class_="tick") for tick in x.ticks
    ]
    labels += [
        element("text", y.tick(tick), x=0.0, dx=-8.0, y=_percent(100 - y.at(tick)), dy=4.0, class_="tick left")
        for tick in y.ticks
    ]
    return element(
        "div",
        element("span", y.title, class_="axis-title upper"),
        element("svg", grid, stretched, dots, labels, class_="curve"),
        element("span", x.title, class_="axis-title"),
        class_="curve-plot",
        role="img",
        aria_label=alt,
    )


def legend(entries: Sequence[tuple[str, str, str]]) -> Markup:
    """What the shapes of a plot mean: (shape, series, words). For the eyes; `alt` says it in words."""
    return element(
        "ul",
        [element("li", _swatch(shape, series), element("span", words)) for shape, series, words in entries],
        class_="legend",
        aria_hidden="true",
    )


def patterns() -> Markup:
    """Textures that plots refer to; once a page, before all plots."""
    stripes = element(
        "pattern",
        element("rect", width=8.0, height=8.0, class_="own"),
        element("rect", width=4.0, height=8.0, class_="others"),
        id="stripes",
        width=8.0,
        height=8.0,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
    return element("svg", element("defs", stripes), class_="patterns", aria_hidden="true", focusable="false")


def _swatch(shape: str, series: str) -> Markup:
    if shape in ("dot", "ring"):
        drawn = element("circle", cx=11.0, cy=7.0, r=5.0, class_=f"{shape} {series}")
    elif shape == "whisker":
        drawn = _whisker("1", "21", 7.0)
    elif shape == "band":
        drawn = element("rect", x=0.0, y=1.0, width=22.0, height=12.0, class_="band")
    elif shape == "reference":
        drawn = element("line", x1=0.0, x2=22.0, y1=7.0, y2=7.0, class_="reference")
    else:
        drawn = element("rect", x=0.0, y=1.0, width=22.0, height=12.0, class_=series)
    return element("svg", drawn, class_="swatch", width=22.0, height=14.0)


def _shape(mark: Mark, axis: Axis) -> Markup:
    start, end = axis.at(mark.start), axis.at(mark.end)
    if mark.shape in ("dot", "ring"):
        return element(
            "circle", cx=_percent(start), cy=_MIDDLE + mark.lane, r=5.0, class_=f"{mark.shape} {mark.series}"
        )
    if mark.shape == "whisker":
        return _whisker(_percent(start), _percent(end), _MIDDLE + mark.lane, mark.series)
    top, height = {"bar": (6.0, 14.0), "range": (5.0, 16.0), "segment": (2.0, 22.0)}[mark.shape]
    corners = 3.0 if mark.shape == "range" else None
    # A range without width is still seen.
    width = max(end - start, 0.6 if mark.shape == "range" else 0.0)
    box = element(
        "rect", x=_percent(start), width=_percent(width), y=top, height=height, rx=corners, class_=mark.series
    )
    if not mark.label:
        return box
    text = element("text", mark.label, y=_MIDDLE + 4.0, class_=f"inside on-{mark.series}")
    pill = element("rect", x=-19.0, y=_MIDDLE - 8.0, width=38.0, height=16.0, rx=3.0, class_=f"pill on-{mark.series}")
    return Markup(box + element("svg", pill, text, x=_percent((start + end) / 2), class_="overflowing"))


def _whisker(start: str, end: str, middle: float, series: str = "") -> Markup:
    upper, lower = middle - 4.0, middle + 4.0
    return element(
        "g",
        element("line", x1=start, x2=end, y1=middle, y2=middle),
        element("line", x1=start, x2=start, y1=upper, y2=lower),
        element("line", x1=end, x2=end, y1=upper, y2=lower),
        class_=f"whisker {series}".strip(),
    )


def _tick_line(axis: Axis, value: float, kind: str) -> Markup:
    place = _percent(axis.at(value))
    # Beyond the track, over the space between rows.
    return element("line", x1=place, x2=place, y1=-3.0, y2=2 * _MIDDLE + 3.0, class_=kind)


def _rule(axis: Axis, value: float, kind: str) -> Markup:
    place = _percent(100 - axis.at(value))
    return element("line", x1=0.0, x2="100%", y1=place, y2=place, class_=kind)


def _place(x: Axis, y: Axis, at: float, value: float) -> str:
    return f"{x.at(at):.2f},{100 - y.at(value):.2f}"


def _percent(place: float) -> str:
    return f"{place:.2f}%"
