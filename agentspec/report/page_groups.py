"""Sets of outputs in plots and tables: which are drawn, in which order, under which names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from agentspec.report.page_markup import Content, Markup, element, name, visible
from agentspec.report.page_numbers import Interval, count, known, with_interval
from agentspec.report.page_parts import Column
from agentspec.report.page_plots import Mark

MAX_GROUP_ROWS = 12
"""Of a plot: the sets with most output tokens of each kind."""

HEADINGS = {"all": "", "role": "By role", "tenant": "By tenant", "day": "By day", "file": "By file"}
COLUMNS = [Column("Set", number=False), Column("By", number=False), Column("Outputs"), Column("Output", "tokens")]

Set = Mapping[str, Any]
Value = TypeVar("Value")


def ordered(facts: Mapping[str, Any]) -> list[Set]:
    """The sets of the facts: the whole first, then by kind; days as they follow each other, others the largest first."""
    kinds = list(HEADINGS)
    return sorted(
        facts.get("sets") or [],
        key=lambda entry: (
            kinds.index(entry["by"]) if entry.get("by") in kinds else len(kinds),
            str(entry.get("name")) if entry.get("by") == "day" else "",
            -(known(entry.get("output_tokens")) or 0),
        ),
    )


def grouped(found: Sequence[tuple[Set, Value]]) -> list[tuple[tuple[Set, Value], str]]:
    """The sets of a plot, those with most output of each kind; the first of a kind with its heading."""
    kinds: dict[str, list[tuple[Set, Value]]] = {}
    for pair in found:
        kinds.setdefault(str(pair[0].get("by")), []).append(pair)
    rows = []
    for kind, pairs in kinds.items():
        sizes = [known(entry.get("output_tokens")) or 0 for entry, _ in pairs]
        largest = sorted(range(len(pairs)), key=lambda place: -sizes[place])[:MAX_GROUP_ROWS]
        for number, place in enumerate(sorted(largest)):
            rows.append((pairs[place], HEADINGS.get(kind, "Others") if number == 0 else ""))
    return rows


def left_out(found: Sequence[tuple[Set, Value]]) -> Markup:
    """Says that some sets are not drawn, if so."""
    shown = len(grouped(found))
    if shown == len(found):
        return Markup()
    words = f"{shown} of {len(found):,} sets are drawn, of each kind those with most output; more are in the table."
    return element("p", words, class_="note")


def label(entry: Set) -> Markup:
    """Of its row in a plot."""
    return element("span", "All outputs" if entry.get("by") == "all" else name(entry.get("name"), 60), class_="name")


def cells(entry: Set) -> list[Content]:
    """Of COLUMNS."""
    by = str(entry.get("by") or "")
    label = "All outputs" if by == "all" else name(entry.get("name"))
    return [label, "" if by == "all" else by, count(entry.get("outputs")), count(entry.get("output_tokens"))]


def whiskers(value: Interval, lane: float = 0.0) -> list[Mark]:
    """One, or none for a value without an interval."""
    if value.low is None or value.high is None:
        return []
    return [Mark(shape="whisker", start=value.low, end=value.high, lane=lane)]


def spoken(entry: Set) -> str:
    """Its name in the description of a plot."""
    if entry.get("by") == "all":
        return "all outputs"
    return visible(str(entry.get("name") or "(no name)"), 60)


def summary(what: str, found: Sequence[tuple[Set, Interval]]) -> str:
    """A plot in words: the whole, the lowest and the highest."""
    ranked = sorted((value.mean, spoken(entry)) for entry, value in found)
    words = f"{what}. {spoken(found[0][0])}: {with_interval(found[0][1])}."
    if len(found) > 2:
        words += f" Lowest: {ranked[0][1]}, {ranked[0][0]:.2f}; highest: {ranked[-1][1]}, {ranked[-1][0]:.2f}."
    return f"{words} The table below has all numbers."
