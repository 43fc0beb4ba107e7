"""The section on the replay grid: which rule, width and tau draft best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentspec.report.page_markup import Content, Markup, element
from agentspec.report.page_numbers import UNKNOWN, count, decimal, known, share
from agentspec.report.page_parts import Column, Section, figure, numbers, scrolled


def replay(facts: Mapping[str, Any]) -> Section:
    rows = facts.get("replay") or []
    # One session alone has nothing to be warm from.
    measured = "warm" if any(known(row.get("accept_length_warm")) is not None for row in rows) else "cold"
    best = max((known(row.get(f"accept_length_{measured}")) or 0.0 for row in rows), default=0.0)
    taus: dict[float | None, list[Mapping[str, Any]]] = {}
    for row in rows:
        taus.setdefault(known(row.get("tau")), []).append(row)
    body: list[Content] = []
    if rows:
        grids = [_grid(tau, cells, measured, best) for tau, cells in taus.items()]
        body.append(
            figure(
                f"Accept length, {measured}, by drafting rule and width",
                "Tokens a step, darker where more; the best is framed and marked ★. A wider draft costs more to verify, "
                "so the best here need not be the fastest.",
                element("div", grids, class_="grids"),
                numbers("replay", _REPLAY_COLUMNS, [_replay_cells(row) for row in rows]),
            )
        )
    lead = (
        "The recorded outputs, drafted for again as if they were being written. Width is how many tokens a step "
        "may verify, alpha how long a draft may be for each token of context that matched, tau what a draft must promise."
    )
    return Section("replay", "Settings", "Which settings draft best", lead, body)


_REPLAY_COLUMNS = [
    Column("Rule", number=False),
    Column("Alpha"),
    Column("Width", "tokens"),
    Column("Tau", "tokens"),
    Column("Accept length, cold", "tokens a step"),
    Column("Accept length, warm", "tokens a step"),
    Column("Drafted", "tokens a step"),
    Column("Accepted", "of drafted"),
    Column("Suffix drafts", "of steps"),
]


def _replay_cells(row: Mapping[str, Any]) -> list[Content]:
    alpha = known(row.get("alpha"))
    return [
        _rule(row),
        "none" if alpha is None else f"{alpha:g}",
        count(row.get("width")),
        decimal(row.get("tau")),
        decimal(row.get("accept_length_cold")),
        decimal(row.get("accept_length_warm")),
        decimal(row.get("drafted_per_step"), 1),
        share(row.get("acceptance_rate")),
        share(row.get("draft_share")),
    ]


def _rule(row: Mapping[str, Any]) -> str:
    rule = str(row.get("rule") or UNKNOWN)
    return {"calibrated": "Calibrated", "suffixdecoding": "SuffixDecoding"}.get(rule, rule)[:40]


def _grid(tau: float | None, rows: Sequence[Mapping[str, Any]], measured: str, best: float) -> Markup:
    """One tau: rules down, widths across."""
    cells: dict[str, dict[float, float | None]] = {}
    for row in rows:
        alpha, width = known(row.get("alpha")), known(row.get("width"))
        key = _rule(row) if alpha is None else f"{_rule(row)}, alpha\N{NO-BREAK SPACE}{alpha:g}"
        if width is not None:
            cells.setdefault(key, {})[width] = known(row.get(f"accept_length_{measured}"))
    widths = sorted({width for line in cells.values() for width in line})
    # A step without drafts yields 1 token; what is best is darkest.
    span = max(best - 1.0, 1e-9)

    def cell(value: float | None) -> Markup:
        if value is None:
            return element("td", element("span", "not replayed", class_="unseen"), class_="number")
        first = value >= best - 1e-9
        strength = min(max((value - 1.0) / span, 0.0), 1.0)
        sign = [element("span", "★", class_="star"), element("span", " best", class_="unseen")] if first else None
        style = f"--strength:{strength:.3f}"
        return element("td", f"{value:.2f}", sign, class_="heat best" if first else "heat", style=style)

    caption = (
        "Every draft is taken (tau 0)"
        if not tau
        else f"Drafts that promise over {tau:g} {'token' if tau == 1 else 'tokens'} (tau {tau:g})"
    )
    head = [element("th", "Width, tokens", scope="col")] + [
        element("th", f"{width:g}", scope="col") for width in widths
    ]
    body = [
        element("tr", element("th", key, scope="row"), [cell(line.get(width)) for width in widths])
        for key, line in cells.items()
    ]
    drawn = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", head)),
        element("tbody", body),
        class_="grid",
    )
    return scrolled(f"Accept length by rule and width, tau {tau or 0:g}", drawn)
