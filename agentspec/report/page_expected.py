"""Sections on what is to be expected: the learning curve, speed-up, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentspec.report.page_axis import linear, logarithmic
from agentspec.report.page_markup import Content, Markup, element, visible
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
    size,
    times,
    with_interval,
)
from agentspec.report.page_parts import Column, Section, Tile, figure, numbers, tiles
from agentspec.report.page_plots import Mark, Point, Row, curve, legend, rows_plot

# From here on equal steps would crowd the early outputs, where most is learnt.
_LOGARITHMIC_FROM = 20.0
_PLAIN = (1.0, "plain decoding, 1 token a step")


def learning(facts: Mapping[str, Any]) -> Section:
    points = []
    for row in facts.get("learning_curve") or []:
        at, told = known(row.get("outputs")), interval({**row, "mean": row.get("accept_length")})
        if at is not None and told is not None:
            points.append((at, told))
    points.sort()
    body: list[Content] = []
    if len(points) == 1:
        at, told = points[0]
        words = (
            f"{with_interval(told)} tokens a step after {counted(at, 'output')}: one point is too little for a curve."
        )
        body.append(element("p", words))
    elif points:
        bounded = any(told.low is not None for _, told in points)
        body.append(
            figure(
                "Accept length against outputs seen",
                _learning_reading(points),
                Markup(
                    _learning_curve(points)
                    + legend(
                        [
                            ("dot", "first", "mean"),
                            *([("band", "", "90 % interval")] if bounded else []),
                            ("reference", "", _PLAIN[1]),
                        ]
                    )
                ),
                numbers(
                    "learning curve",
                    [
                        Column("Outputs learnt from"),
                        Column("Accept length", "tokens a step"),
                        Column("Interval", "90 %"),
                    ],
                    [[count(at), decimal(told.mean), between(told) or UNKNOWN] for at, told in points],
                ),
            )
        )
    growth = facts.get("growth") or {}
    expected, *ends = (known(growth.get(f"at_ten_times{end}")) for end in ("", "_low", "_high"))
    if body and expected is not None:
        span = f" ({ends[0]:.2f} to {ends[1]:.2f})" if ends[0] is not None and ends[1] is not None else ""
        words = f"With ten times as many outputs, if the curve goes on as it does: about {expected:.2f}{span} tokens a step."
        body.append(element("p", words))
    lead = "How much drafts gain by each finished output, and whether they still gain at the end of these logs."
    return Section("learning", "Learning", "How fast it learns", lead, body)


def speedup(facts: Mapping[str, Any]) -> Section:
    rows = [row for row in facts.get("speedup") or [] if known(row.get("low")) and known(row.get("high"))]
    body: list[Content] = []
    if rows:
        axis = linear(
            "times as fast as plain decoding",
            [row["high"] for row in rows],
            reference=(1.0, "plain decoding"),
            suffix="×",
        )
        drawn = []
        heading = ""
        for row in rows:
            title = f"{_profile(row)}, controller {str(row.get('controller') or UNKNOWN)[:40]}"
            drawn.append(
                Row(
                    label=f"{count(row.get('concurrency'))} at a time",
                    value=f"{times(row['low'])} to {times(row['high'])}",
                    marks=[Mark(shape="range", start=row["low"], end=row["high"])],
                    heading="" if title == heading else title,
                )
            )
            heading = title
        body.append(
            figure(
                "Expected speed-up by requests decoded at once",
                _speedup_reading(rows),
                rows_plot(drawn, axis, _speedup_summary(rows)),
                numbers(
                    "expected speed-up",
                    [
                        Column("Cost profile", number=False),
                        Column("Controller", number=False),
                        Column("Concurrency", "requests at once"),
                        Column("Low", "× plain"),
                        Column("High", "× plain"),
                        *(
                            column
                            for state in ("From nothing", "Learnt")
                            for column in (
                                Column(state, "outputs"),
                                Column("Range", "× plain"),
                                Column("Accept length", "tokens a step"),
                            )
                        ),
                    ],
                    [
                        [
                            _profile(row),
                            str(row.get("controller") or UNKNOWN)[:40],
                            count(row.get("concurrency")),
                            times(row["low"]),
                            times(row["high"]),
                            *_of_state(row.get("cold")),
                            *_of_state(row.get("warm")),
                        ]
                        for row in rows
                    ],
                ),
            )
        )
    lead = (
        "Accept lengths and the seconds that steps take, put together. More requests at once leave less room to gain."
    )
    return Section("speedup", "Speed-up", "How much faster to expect", lead, body)


def memory(facts: Mapping[str, Any]) -> Section:
    told = facts.get("memory") or {}
    index, budget = known(told.get("index_bytes")), known(told.get("budget_mb"))
    body: list[Content] = []
    if any(known(value) is not None for value in told.values()):
        body.append(
            tiles(
                [
                    Tile("Index of these outputs", size(index), "" if index is None else "of memory"),
                    Tile("Each token", decimal(told.get("bytes_per_token"), 1), "bytes"),
                    Tile("Each million tokens", size(told.get("bytes_per_million_tokens")), "of memory"),
                    Tile(
                        "What the budget holds",
                        count(told.get("outputs_that_fit")),
                        "outputs like these",
                        None if budget is None else f"Of {budget:,.0f} MB; then the oldest leave.",
                    ),
                ]
            )
        )
    if index is not None and budget:
        used = index / (budget * 1e6)
        drawn = Row(
            label="Used by these", value=share(used), marks=[Mark(shape="bar", start=0, end=100 * min(used, 1))]
        )
        alt = f"These outputs take {size(index)} of a budget of {budget:,.0f} MB, {share(used)}."
        body.append(rows_plot([drawn], linear("of the budget", [100.0], suffix=" %"), alt))
    lead = "Finished outputs are indexed in the memory of the host, not of the GPU."
    return Section("memory", "Memory", "How much memory it needs", lead, body)


def _profile(row: Mapping[str, Any]) -> str:
    return visible(str(row.get("profile") or UNKNOWN), 80)


def _of_state(told: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """Outputs, range and accept length of a server in one state."""
    told = told or {}
    low, high = known(told.get("low")), known(told.get("high"))
    span = f"{times(low)} to {times(high)}" if low is not None and high is not None else UNKNOWN
    return count(told.get("outputs")), span, decimal(told.get("accept_length"))


def _speedup_reading(rows: Sequence[Mapping[str, Any]]) -> str:
    first, last = (known((rows[0].get(state) or {}).get("outputs")) for state in ("cold", "warm"))
    said = "Each bar is a range, never a promise: it may end anywhere inside. Left of the dashed line is slower."
    if first is None:
        return said
    ends = f" A bar begins with a server that knows nothing, over its first {counted(first, 'output')}"
    return f"{said}{ends}." if last is None else f"{said}{ends}, and ends with one that has learnt {count(last)}."


def _learning_curve(points: Sequence[tuple[float, Interval]]) -> Markup:
    xs = [at for at, _ in points]
    title = "finished outputs learnt from"
    # On a logarithmic axis what nothing was learnt from stands at one output.
    positive = [max(at, 1.0) for at in xs]
    spread = positive[-1] / positive[0] >= _LOGARITHMIC_FROM
    x = logarithmic(f"{title}, logarithmic", positive) if spread else linear(title, xs)
    bounds = [value for _, told in points for value in told if value is not None]
    y = linear("accept length, tokens a step", bounds, start=1.0, reference=_PLAIN)
    return curve([Point(at, *told) for at, told in points], x, y, _learning_summary(points))


def _learning_reading(points: Sequence[tuple[float, Interval]]) -> str:
    (first, start), (last, end) = points[0], points[-1]
    return f"{start.mean:.2f} tokens a step after {counted(first, 'output')}, {end.mean:.2f} after {count(last)}."


def _learning_summary(points: Sequence[tuple[float, Interval]]) -> str:
    told = "; ".join(f"{count(at)}: {told.mean:.2f}" for at, told in points[:: max(1, len(points) // 8)])
    return f"Accept length in tokens a step by outputs learnt from. {told}. The table below has all numbers."


def _speedup_summary(rows: Sequence[Mapping[str, Any]]) -> str:
    told = "; ".join(
        f"{_profile(row)}, {count(row.get('concurrency'))} at a time: {times(row['low'])} to {times(row['high'])}"
        for row in rows[:12]
    )
    return f"Expected speed-up over plain decoding. {told}. The table below has all numbers."
