"""What the sections of a report are built of: sections, figures, tables, tiles, text to copy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentspec.report.page_markup import Content, Markup, element, lines
from agentspec.report.page_numbers import UNKNOWN

MAX_TABLE_ROWS = 100
"""Further ones are counted only: they are in the JSON facts."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page that the contents lead to by its short name; without a body nothing is known of it."""

    key: str
    short: str
    title: str
    lead: Content
    body: Sequence[Content]


@dataclass(frozen=True, slots=True)
class Column:
    """Of a table; numbers are set to the right, and `unit` stands below the title."""

    title: str
    unit: str = ""
    number: bool = True


def section(part: Section) -> Markup:
    empty = not any(part.body)
    return element(
        "section",
        element("h2", part.title, id=f"{part.key}-title"),
        element("p", part.lead, class_="lead") if part.lead and not empty else None,
        _nothing_known() if empty else part.body,
        id=part.key,
        aria_labelledby=f"{part.key}-title",
    )


def figure(title: str, reading: Content, plot: Content, numbers: Content = None) -> Markup:
    """A plot with a title, how it is read, and its numbers."""
    return element(
        "figure",
        element("figcaption", element("h3", title), element("p", reading, class_="reading") if reading else None),
        plot,
        numbers,
    )


def numbers(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Content]]) -> Markup:
    """A table that opens on demand; in print it is open."""
    return element(
        "details", element("summary", "Numbers: ", caption), table(caption, columns, rows, hidden_caption=True)
    )


def table(
    caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Content]], hidden_caption: bool = False
) -> Markup:
    """Rows whose first cell names them. It scrolls by itself where it is wider than the page."""
    head = [
        element(
            "th",
            column.title,
            element("span", column.unit, class_="unit") if column.unit else None,
            scope="col",
            class_="number" if column.number else None,
        )
        for column in columns
    ]
    body = [
        element(
            "tr",
            [
                element("td", cell, class_="number" if column.number else None)
                if place
                else element("th", cell, scope="row", class_="number" if column.number else None)
                for place, (column, cell) in enumerate(zip(columns, row, strict=True))
            ],
        )
        for row in rows[:MAX_TABLE_ROWS]
    ]
    left_out = len(rows) - MAX_TABLE_ROWS
    return Markup(
        scrolled(
            caption,
            element(
                "table",
                element("caption", caption, class_="unseen" if hidden_caption else None),
                element("thead", element("tr", head)),
                element("tbody", body),
            ),
        )
        + (element("p", f"{left_out:,} more rows are in the JSON facts.", class_="note") if left_out > 0 else "")
    )


def scrolled(label: str, content: Content) -> Markup:
    """A box that scrolls to the side, by keyboard too."""
    return element("div", content, class_="scrolled", role="region", aria_label=f"{label} (scrolls)", tabindex=0)


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure with its unit and what it means."""

    title: str
    value: str
    unit: str
    note: Content = None


def tiles(entries: Sequence[Tile]) -> Markup:
    return element(
        "dl",
        [
            element(
                "div",
                element("dt", entry.title),
                element(
                    "dd",
                    element("span", entry.value, class_="figure"),
                    " ",
                    element("span", entry.unit, class_="unit") if entry.unit and entry.value != UNKNOWN else None,
                    class_="value",
                ),
                element("dd", entry.note, class_="note") if entry.note else None,
                class_="tile",
            )
            for entry in entries
        ],
        class_=f"tiles tiles-{len(entries)}",
    )


def described(entries: Iterable[tuple[Content, Content]]) -> Markup:
    """Terms and what they are."""
    return element(
        "dl",
        [element("div", element("dt", term), element("dd", description)) for term, description in entries],
        class_="described",
    )


def listed(entries: Iterable[Content], ordered: bool = False) -> Markup:
    return element("ol" if ordered else "ul", [element("li", entry) for entry in entries], class_="listed")


def to_copy(key: str, label: str, text: str) -> Markup:
    """Text for a terminal, with a button that copies it where the page may run its script."""
    return element(
        "div",
        element(
            "div",
            element("span", label, id=f"{key}-label"),
            element(
                "button",
                "Copy",
                element("span", f" {label.lower()}", class_="unseen"),
                type="button",
                data_copy=key,
                hidden=True,
            ),
            class_="to-copy-head",
        ),
        element(
            "pre",
            element("code", command(text), id=key),
            tabindex=0,
            role="region",
            aria_labelledby=f"{key}-label",
        ),
        class_="to-copy",
    )


def command(text: str) -> list[Markup]:
    """A command unchanged; a flag and its value go to a new line together where they do not fit."""
    return [element("span", lines(part), class_="together") for part in re.split(r"(?<= )(?=--)", text)]


def _nothing_known() -> Markup:
    return element(
        "p",
        "Nothing is known of this. ",
        element("a", "What could not be told", href="#limits"),
        " says why.",
        class_="nothing",
    )
