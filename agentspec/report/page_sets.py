"""Sections that compare sets of outputs: entropy, what repeats, accept lengths, differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from agentspec.report.page_axis import linear
from agentspec.report.page_markup import Content, Markup, element, name
from agentspec.report.page_numbers import (
    UNKNOWN,
    Interval,
    between,
    count,
    counted,
    decimal,
    interval,
    known,
    share,
    with_interval,
)
from agentspec.report.page_parts import Column, Section, figure, numbers, table
from agentspec.report.page_plots import Mark, Row, legend, rows_plot

MAX_GROUP_ROWS = 12
"""Of a plot: the sets with most output tokens. All are in its table."""

HEADINGS = {"all": "", "role": "By role", "tenant": "By tenant", "day": "By day", "file": "By file"}
SOURCES = {
    "own_prompt": ("own", "own prompt"),
    "both": ("both", "both"),
    "other_outputs": ("others", "other outputs"),
    "neither": ("neither", "neither, new"),
}

Set = Mapping[str, Any]
Value = TypeVar("Value")


def repeated_share(repeated: Mapping[str, Any] | None) -> float | None:
    """Of output tokens, all that stood somewhere before."""
    neither = known((repeated or {}).get("neither"))
    return None if neither is None else 1 - neither


def entropy(facts: Mapping[str, Any]) -> Section:
    told = facts.get("entropy") or {}
    whole = interval(told)
    found = [(entry, value) for entry in _sets(facts) if (value := interval(entry.get("entropy"))) is not None]
    body: list[Content] = []
    if whole is not None:
        bounds = between(whole)
        body.append(
            element(
                "p",
                element("strong", decimal(whole.mean), class_="figure"),
                " bits a token",
                f", {bounds} in 90 % of resamples" if bounds else ", without an interval",
                f", from {counted(told.get('outputs'), 'output')} with {counted(told.get('tokens'), 'token')}.",
                class_="large",
            )
        )
        body += [element("p", str(told[key])) for key in ("reading", "method") if told.get(key)]
    if found:
        axis = linear("bits a token", [value.most for _, value in found])
        rows = [
            Row(
                label=_label(entry),
                value=with_interval(value),
                marks=[Mark(shape="bar", start=0, end=value.mean), *_whiskers(value)],
                heading=heading,
            )
            for (entry, value), heading in _grouped(found)
        ]
        body.append(
            figure(
                "Entropy of each set",
                "Shorter bars repeat more and draft better.",
                Markup(
                    rows_plot(rows, axis, _summary("Entropy in bits a token", found))
                    + legend([("bar", "first", "mean"), ("whisker", "", "90 % interval")])
                    + _left_out(found)
                ),
                numbers(
                    "entropy of each set",
                    [*_SET_COLUMNS, Column("Entropy", "bits a token"), Column("Interval", "90 %")],
                    [[*_set_cells(entry), decimal(value.mean), between(value) or UNKNOWN] for entry, value in found],
                ),
            )
        )
    lead = "How freely the model chooses its next token where it stood in the same place before. 0 is pure repetition."
    return Section("entropy", "How predictable the outputs are", lead, body)


def repetition(facts: Mapping[str, Any]) -> Section:
    found = [(entry, told) for entry in _sets(facts) if repeated_share(told := entry.get("repeated")) is not None]
    body = []
    if found:
        rows = []
        for (entry, told), heading in _grouped(found):
            value = f"{share(repeated_share(told))} repeats"
            rows.append(Row(label=_label(entry), value=value, marks=_segments(told), heading=heading))
        axis = linear("of output tokens", [100.0], suffix=" %")
        body.append(
            figure(
                "Where output tokens stood before",
                "Blue and orange can be drafted; stripes stood in both places; what is empty is new.",
                Markup(
                    legend([("segment", series, words) for series, words in SOURCES.values()])
                    + rows_plot(rows, axis, _repetition_summary(found))
                    + _left_out(found)
                ),
                numbers(
                    "where output tokens stood before",
                    [*_SET_COLUMNS, *(Column(words.capitalize(), "of tokens") for _, words in SOURCES.values())],
                    [[*_set_cells(entry), *(share(told.get(key)) for key in SOURCES)] for entry, told in found],
                ),
            )
        )
    lead = (
        "Suffix drafts copy what followed the same words before: in the request's own prompt, or in finished outputs."
    )
    return Section("repetition", "What repeats, and from where", lead, body)


def accept_lengths(facts: Mapping[str, Any]) -> Section:
    found = []
    for entry in _sets(facts):
        lengths = entry.get("accept_length") or {}
        cold, warm = interval(lengths.get("cold")), interval(lengths.get("warm"))
        if cold or warm:
            found.append((entry, (cold, warm)))
    body = []
    if found:
        every = [value.most for _, pair in found for value in pair if value]
        axis = linear("tokens a step", every, start=1.0, reference=(1.0, "plain decoding, 1 token a step"))
        rows = []
        for (entry, (cold, warm)), heading in _grouped(found):
            marks: list[Mark] = []
            shapes: tuple[Literal["ring", "dot"], ...] = ("ring", "dot")
            for value, shape in zip((cold, warm), shapes, strict=True):
                if value:
                    marks += [*_whiskers(value), Mark(shape=shape, start=value.mean)]
            told = f"{decimal(cold.mean if cold else None)} → {decimal(warm.mean if warm else None)}"
            rows.append(Row(label=_label(entry), value=told, marks=marks, heading=heading))
        warm_only = [(entry, warm or cold) for entry, (cold, warm) in found]
        alt = _summary("Accept length in tokens a step, warm", [(e, v) for e, v in warm_only if v])
        body.append(
            figure(
                "Accept length of each set, cold and warm",
                "Further to the right is faster; the way from ring to dot is what finished outputs add.",
                Markup(
                    legend(
                        [
                            ("ring", "first", "cold: nothing learnt yet"),
                            ("dot", "first", "warm: after other outputs"),
                            ("whisker", "", "90 % interval"),
                        ]
                    )
                    + rows_plot(rows, axis, alt)
                    + _left_out(found)
                ),
                numbers(
                    "accept length of each set",
                    [
                        *_SET_COLUMNS,
                        Column("Cold", "tokens a step"),
                        Column("Interval", "90 %"),
                        Column("Warm", "tokens a step"),
                        Column("Interval", "90 %"),
                    ],
                    [
                        [
                            *_set_cells(entry),
                            *(
                                cell
                                for value in pair
                                for cell in (decimal(value.mean if value else None), between(value) or UNKNOWN)
                            ),
                        ]
                        for entry, pair in found
                    ],
                ),
            )
        )
    lead = "Tokens that one step of the model yields: those it accepted of the draft, and one of its own."
    return Section("lengths", "How far drafts reach", lead, body)


def differences(facts: Mapping[str, Any]) -> Section:
    rows = [
        [
            str(row.get("text") or ""),
            str(row.get("what") or "").replace("_", " "),
            name(row.get("low_set"), 60),
            decimal(row.get("low")),
            name(row.get("high_set"), 60),
            decimal(row.get("high")),
        ]
        for row in facts.get("differences") or []
    ]
    columns = [
        Column("What differs", number=False),
        Column("Measured", number=False),
        Column("Lowest", number=False),
        Column("Value"),
        Column("Highest", number=False),
        Column("Value"),
    ]
    body = [table("Sets that behave otherwise", columns, rows)] if rows else []
    lead = "Where tenants, days or roles differ by more than their intervals. Accept lengths are in tokens a step."
    if not rows:
        body = [element("p", "No tenants, days, roles or files were found that behave otherwise than the rest.")]
    return Section("differences", "Who differs", lead if rows else "", body)


_SET_COLUMNS = [Column("Set", number=False), Column("By", number=False), Column("Outputs"), Column("Output", "tokens")]


def _sets(facts: Mapping[str, Any]) -> list[Set]:
    """The whole first, then by kind; days as they follow each other, others the largest first."""
    kinds = list(HEADINGS)
    return sorted(
        facts.get("sets") or [],
        key=lambda entry: (
            kinds.index(entry["by"]) if entry.get("by") in kinds else len(kinds),
            str(entry.get("name")) if entry.get("by") == "day" else "",
            -(known(entry.get("output_tokens")) or 0),
        ),
    )


def _grouped(found: Sequence[tuple[Set, Value]]) -> list[tuple[tuple[Set, Value], str]]:
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


def _left_out(found: Sequence[tuple[Set, Value]]) -> Markup:
    shown = len(_grouped(found))
    if shown == len(found):
        return Markup()
    words = f"{shown} of {len(found):,} sets are drawn, of each kind those with most output; all are in the table."
    return element("p", words, class_="note")


def _label(entry: Set) -> Markup:
    return element("span", "All outputs" if entry.get("by") == "all" else name(entry.get("name"), 60), class_="name")


def _set_cells(entry: Set) -> list[Content]:
    by = str(entry.get("by") or "")
    label = "All outputs" if by == "all" else name(entry.get("name"))
    return [label, "" if by == "all" else by, count(entry.get("outputs")), count(entry.get("output_tokens"))]


def _whiskers(value: Interval) -> list[Mark]:
    if value.low is None or value.high is None:
        return []
    return [Mark(shape="whisker", start=value.low, end=value.high)]


def _segments(repeated: Mapping[str, Any]) -> list[Mark]:
    marks, start = [], 0.0
    for key, (series, _) in SOURCES.items():
        part = known(repeated.get(key)) or 0.0
        # A narrower segment has no room for its number on a phone.
        label = share(part) if part >= 0.14 else ""
        marks.append(Mark(shape="segment", start=100 * start, end=100 * (start + part), series=series, label=label))
        start += part
    return marks


def _repetition_summary(found: Sequence[tuple[Set, Mapping[str, Any]]]) -> str:
    entry, told = found[0]
    parts = ", ".join(f"{words} {share(told.get(key))}" for key, (_, words) in SOURCES.items())
    alt = f"Shares of output tokens by where they stood before. {entry.get('name')}: {parts}."
    if len(found) > 2:
        ranked = sorted((repeated_share(told) or 0.0, str(entry.get("name"))) for entry, told in found)
        alt += f" Repeats least: {ranked[0][1]}, {share(ranked[0][0])}; most: {ranked[-1][1]}, {share(ranked[-1][0])}."
    return f"{alt} The table below has all numbers."


def _summary(what: str, found: Sequence[tuple[Set, Interval]]) -> str:
    """A plot in words: the whole, the lowest and the highest."""
    ranked = sorted((value.mean, str(entry.get("name"))) for entry, value in found)
    words = f"{what}. {found[0][0].get('name')}: {with_interval(found[0][1])}."
    if len(found) > 2:
        words += f" Lowest: {ranked[0][1]}, {ranked[0][0]:.2f}; highest: {ranked[-1][1]}, {ranked[-1][0]:.2f}."
    return f"{words} The table below has all numbers."
