"""Sections that compare sets of outputs: entropy, what repeats, accept lengths, differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentspec.report import page_groups as groups
from agentspec.report.page_axis import linear
from agentspec.report.page_markup import Content, Markup, element, name, sentence
from agentspec.report.page_numbers import (
    UNKNOWN,
    between,
    counted,
    decimal,
    interval,
    known,
    share,
    with_interval,
)
from agentspec.report.page_parts import Column, Section, figure, listed, numbers
from agentspec.report.page_plots import Mark, Row, legend, rows_plot

SOURCES = {
    "own_prompt": ("own", "own prompt"),
    "both": ("both", "both"),
    "other_outputs": ("others", "other outputs"),
    "neither": ("neither", "neither, new"),
}


def repeated_share(repeated: Mapping[str, Any] | None) -> float | None:
    """Of output tokens, all that stood somewhere before."""
    neither = known((repeated or {}).get("neither"))
    return None if neither is None else 1 - neither


def entropy(facts: Mapping[str, Any]) -> Section:
    told = facts.get("entropy") or {}
    whole = interval(told)
    found = [(entry, value) for entry in groups.ordered(facts) if (value := interval(entry.get("entropy"))) is not None]
    body: list[Content] = []
    if whole is not None:
        bounds = between(whole)
        body.append(
            element(
                "p",
                element("strong", decimal(whole.mean), class_="figure"),
                " bits a token",
                f" (90 % interval {bounds})" if bounds else " (without an interval)",
                f", from {counted(told.get('outputs'), 'output')} with {counted(told.get('tokens'), 'token')}.",
                class_="large",
            )
        )
        if told.get("reading"):
            body.append(element("p", sentence(told["reading"])))
        if told.get("method"):
            body.append(element("p", "Method: ", sentence(told["method"]), class_="note"))
    if found:
        axis = linear("bits a token", [value.most for _, value in found])
        rows = [
            Row(
                label=groups.label(entry),
                value=with_interval(value),
                marks=[Mark(shape="bar", start=0, end=value.mean), *groups.whiskers(value)],
                heading=heading,
            )
            for (entry, value), heading in groups.grouped(found)
        ]
        body.append(
            figure(
                "Entropy of each set",
                "Shorter bars repeat more and draft better.",
                Markup(
                    rows_plot(rows, axis, groups.summary("Entropy in bits a token", found))
                    + legend([("bar", "first", "mean"), ("whisker", "", "90 % interval")])
                    + groups.left_out(found)
                ),
                numbers(
                    "entropy of each set",
                    [*groups.COLUMNS, Column("Entropy", "bits a token"), Column("Interval", "90 %")],
                    [[*groups.cells(entry), decimal(value.mean), between(value) or UNKNOWN] for entry, value in found],
                ),
            )
        )
    lead = "How freely the model chooses its next token where it stood in the same place before. 0 is pure repetition."
    return Section("entropy", "Entropy", "How predictable the outputs are", lead, body)


def repetition(facts: Mapping[str, Any]) -> Section:
    found = [
        (entry, told)
        for entry in groups.ordered(facts)
        if (told := entry.get("repeated")) is not None and repeated_share(told) is not None
    ]
    body = []
    if found:
        rows = []
        for (entry, told), heading in groups.grouped(found):
            value = f"{share(repeated_share(told))} repeats"
            rows.append(Row(label=groups.label(entry), value=value, marks=_segments(told), heading=heading))
        axis = linear("of output tokens", [100.0], suffix=" %")
        body.append(
            figure(
                "Where output tokens stood before",
                "Blue and orange can be drafted; stripes stood in both places; what is empty is new.",
                Markup(
                    legend([("segment", series, words) for series, words in SOURCES.values()])
                    + rows_plot(rows, axis, _repetition_summary(found))
                    + groups.left_out(found)
                ),
                numbers(
                    "where output tokens stood before",
                    [*groups.COLUMNS, *(Column(words.capitalize(), "of tokens") for _, words in SOURCES.values())],
                    [[*groups.cells(entry), *(share(told.get(key)) for key in SOURCES)] for entry, told in found],
                ),
            )
        )
    lead = (
        "Suffix drafts copy what followed the same words before: in the request's own prompt, or in finished outputs."
    )
    return Section("repetition", "Repetition", "What repeats, and from where", lead, body)


def accept_lengths(facts: Mapping[str, Any]) -> Section:
    found = []
    for entry in groups.ordered(facts):
        lengths = entry.get("accept_length") or {}
        cold, warm = interval(lengths.get("cold")), interval(lengths.get("warm"))
        if cold or warm:
            found.append((entry, (cold, warm)))
    body = []
    if found:
        every = [value.most for _, pair in found for value in pair if value]
        axis = linear("tokens a step", every, start=1.0, reference=(1.0, "plain decoding, 1 token a step"))
        rows = []
        for (entry, (cold, warm)), heading in groups.grouped(found):
            marks: list[Mark] = []
            shapes: tuple[Literal["ring", "dot"], ...] = ("ring", "dot")
            lanes = (-4.5, 4.5) if cold and warm else (0.0, 0.0)
            for value, shape, lane in zip((cold, warm), shapes, lanes, strict=True):
                if value:
                    marks += [*groups.whiskers(value, lane), Mark(shape=shape, start=value.mean, lane=lane)]
            told = f"{decimal(cold.mean if cold else None)} → {decimal(warm.mean if warm else None)}"
            rows.append(Row(label=groups.label(entry), value=told, marks=marks, heading=heading))
        warm_only = [(entry, warm or cold) for entry, (cold, warm) in found]
        alt = groups.summary("Accept length in tokens a step, warm", [(e, v) for e, v in warm_only if v])
        body.append(
            figure(
                "Accept length of each set, cold and warm",
                "Further to the right is faster; the way from ring to dot is what finished outputs add. Figures are cold → warm.",
                Markup(
                    legend(
                        [
                            ("ring", "first", "cold: nothing learnt yet"),
                            ("dot", "first", "warm: after other outputs"),
                            ("whisker", "", "90 % interval"),
                        ]
                    )
                    + rows_plot(rows, axis, alt)
                    + groups.left_out(found)
                ),
                numbers(
                    "accept length of each set",
                    [
                        *groups.COLUMNS,
                        Column("Cold", "tokens a step"),
                        Column("Interval", "90 %"),
                        Column("Warm", "tokens a step"),
                        Column("Interval", "90 %"),
                    ],
                    [
                        [
                            *groups.cells(entry),
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
    return Section("lengths", "Accept length", "How far drafts reach", lead, body)


def differences(facts: Mapping[str, Any]) -> Section:
    found = facts.get("differences") or []
    body: list[Content] = [
        element(
            "p", "No roles, tenants, days or files were found whose outputs behave otherwise than those beside them."
        )
    ]
    if found:
        columns = [
            Column("Measured", number=False),
            Column("By", number=False),
            Column("Lowest", number=False),
            Column("Value"),
            Column("Highest", number=False),
            Column("Value"),
        ]
        rows = [
            [
                name(str(row.get("what") or UNKNOWN).replace("_", " "), 40),
                name(row.get("by") or UNKNOWN, 20),
                name(row.get("low_set"), 60),
                _measured(row.get("what"), row.get("low")),
                name(row.get("high_set"), 60),
                _measured(row.get("what"), row.get("high")),
            ]
            for row in found
        ]
        body = [
            listed(sentence(row["text"]) for row in found if row.get("text")),
            numbers("differences between sets", columns, rows),
        ]
    lead = "Sets whose outputs behave otherwise than those beside them: one setting may not suit all."
    return Section("differences", "Differences", "Who differs", lead if found else "", body)


def _measured(what: object, value: object) -> str:
    unit = _UNITS.get(str(what))
    return share(value) if what == "repeated" else f"{decimal(value)} {unit}" if unit else decimal(value)


_UNITS = {"accept_length": "tokens a step", "entropy": "bits a token"}


def _segments(repeated: Mapping[str, Any]) -> list[Mark]:
    marks, start = [], 0.0
    for key, (series, _) in SOURCES.items():
        part = known(repeated.get(key)) or 0.0
        # A narrower segment has no room for its number on a phone.
        label = share(part) if part >= 0.14 else ""
        marks.append(Mark(shape="segment", start=100 * start, end=100 * (start + part), series=series, label=label))
        start += part
    return marks


def _repetition_summary(found: Sequence[tuple[groups.Set, Mapping[str, Any]]]) -> str:
    entry, told = found[0]
    parts = ", ".join(f"{words} {share(told.get(key))}" for key, (_, words) in SOURCES.items())
    alt = f"Shares of output tokens by where they stood before. {groups.spoken(entry)}: {parts}."
    if len(found) > 2:
        ranked = sorted((repeated_share(told) or 0.0, groups.spoken(entry)) for entry, told in found)
        alt += f" Repeats least: {ranked[0][1]}, {share(ranked[0][0])}; most: {ranked[-1][1]}, {share(ranked[-1][0])}."
    return f"{alt} The table below has all numbers."
