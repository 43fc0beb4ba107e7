"""Tables and curves of `agentspec bench specdec`, from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentspec.analysis.plots import Curve
from agentspec.evals.research.specdec_rounds import least_verification

Row = dict[str, Any]
_CURVES = {
    "fixed": "fixed length K",
    "shipped": "acceptance head, h",
    "confidence": "confidence, h",
    "oracle": "oracle (Lemma 2.1)",
}

_COLORS = {"fixed": "#b03030", "shipped": "#1c5fa8", "confidence": "#2f8f4e", "oracle": "#444444"}


def markdown(report: dict[str, Any]) -> str:
    """Rates by rule, the head's frontier below the fixed lengths, and tokens a second."""
    head, rows = report["head"], report["rows"]
    drafters = list(dict.fromkeys(row["drafter"] for row in rows))
    what = (
        f"{head['texts']} held-out texts, seed {head['seed']}, at most {head['longest_draft']} drafted tokens a round"
    )
    where = f"{_versions(head['versions'])}; {head['hardware']['processor']}"
    lines = [f"`{' '.join(head['command'])}`: {what}; {where}.", ""]
    for drafter in drafters:
        lines += [f"## {drafter}", "", *_frontier(drafter, rows), "", *_speeds(drafter, rows), ""]
        lines += _batches([row for row in report["batches"] if row["drafter"] == drafter])
    lines += ["Seconds of a forward, medians:", "", *_seconds(head["seconds"]), ""]
    return "\n".join(lines)


def panels(rows: Sequence[Row]) -> dict[str, list[Curve]]:
    """Curves of each drafter: fixed lengths, the shipped head, the drafter's confidence, the oracle's point, and
    faintly all other heads."""
    found: dict[str, list[Curve]] = {}
    for drafter in dict.fromkeys(row["drafter"] for row in rows):
        curves = []
        for rule, of_rule in _by_rule(drafter, rows).items():
            points = [(row["discard_rate"], row["verification_rate"]) for row in of_rule]
            kind = rule[0]
            if kind == "head":
                curves.append(Curve("", "#9db7d5", points))
                continue
            name = _CURVES[kind]
            labels = [str(row["length"]) if kind == "fixed" else "" for row in of_rule]
            curves.append(Curve(name, _COLORS[kind], points, labels, "5 3" if kind == "confidence" else ""))
        found[drafter] = curves
    return found


def _by_rule(drafter: str, rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["drafter"] == drafter:
            grouped.setdefault((row["rule"], row.get("depth"), row.get("rejection_weight")), []).append(row)
    return grouped


def _frontier(drafter: str, rows: Sequence[Row]) -> list[str]:
    grouped = _by_rule(drafter, rows)
    fixed = grouped["fixed", None, None]
    sides: dict[str, list[tuple[float, float]]] = {"shipped": [], "confidence": [], "any": []}
    for (kind, _, _), of_rule in grouped.items():
        points = [(row["discard_rate"], row["verification_rate"]) for row in of_rule]
        if kind in ("shipped", "confidence"):
            sides[kind] += points
        if kind in ("shipped", "head"):
            sides["any"] += points
    lines = [
        "Verification rate at the discard rate of each fixed length, and what it is less:",
        "",
        "| K | discard rate | verification rate | shipped head | best of all heads | confidence |",
        "|---|---|---|---|---|---|",
    ]
    for row in fixed:
        at, rate = row["discard_rate"], row["verification_rate"]
        cells = [_against(least_verification(sides[name], at), rate) for name in ("shipped", "any", "confidence")]
        lines.append(f"| {row['length']} | {at:.3f} | {rate:.3f} | {' | '.join(cells)} |")
    return lines


def _against(reached: float | None, rate: float) -> str:
    return "" if reached is None else f"{reached:.3f} ({reached / rate - 1:+.1%})"


def _speeds(drafter: str, rows: Sequence[Row]) -> list[str]:
    grouped = _by_rule(drafter, rows)
    lines = [
        "Tokens a second by equation 2.1, each rule at its best setting:",
        "",
        "| times | best fixed K | head, best h | head, its own h | head, h of Theorem 3.1 | best of all heads | confidence, best h | "
        + "oracle |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cost in rows[0]["tokens_per_second"]:
        fixed = _best(grouped["fixed", None, None], cost)
        base = fixed["tokens_per_second"][cost]
        shipped = [row for rule, of_rule in grouped.items() if rule[0] == "shipped" for row in of_rule]
        heads = [row for rule, of_rule in grouped.items() if rule[0] in ("shipped", "head") for row in of_rule]
        cells = [f"{base:.4g} (K={fixed['length']})"]
        own = [row for row in shipped if row["own_h"]]
        theorem = [row for row in shipped if cost in row["theorem_h"]]
        for choice in (shipped, own, theorem, heads, grouped["confidence", None, None], grouped["oracle", None, None]):
            cells.append(_gain(_best(choice, cost), cost, base) if choice else "")
        lines.append(f"| {cost} | {' | '.join(cells)} |")
    return lines


def _batches(rows: Sequence[Row]) -> list[str]:
    """Where drafts end row by row or together, each at its best threshold."""
    if not rows:
        return []
    lines = [
        f"Tokens a second of {rows[0]['rows']} texts at a time, by the times of a profile, each way at its best h:",
        "",
        "| rule | each row ends by itself | the same, rows padded to the widest | all end with the last |",
        "|---|---|---|---|",
    ]
    for rule in dict.fromkeys(row["rule"] for row in rows):
        cells = []
        for way in ("by_row", "by_row_padded", "together"):
            best = max(
                (row for row in rows if row["rule"] == rule), key=lambda row: float(row["tokens_per_second"][way])
            )
            cells.append(f"{best['tokens_per_second'][way]:.4g} (h={best['h']})")
        lines.append(f"| {_CURVES[rule]} | {' | '.join(cells)} |")
    return [*lines, ""]


def _best(rows: Sequence[Row], cost: str) -> Row:
    return max(rows, key=lambda row: float(row["tokens_per_second"][cost]))


def _gain(row: Row, cost: str, base: float) -> str:
    head = f", D={row['depth']}, w_rej={row['rejection_weight']:g}" if row.get("depth") is not None else ""
    setting = f" (h={row['h']}{head})" if "h" in row else ""
    return f"{row['tokens_per_second'][cost]:.4g}, {row['tokens_per_second'][cost] / base:.3f}x{setting}"


def _seconds(seconds: dict[str, dict[Any, float]]) -> list[str]:
    target = ", ".join(f"{1e3 * value:.2f} ms of {width}" for width, value in seconds["target"].items())
    lines = [f"- target, verifying tokens: {target}"]
    for name, value in seconds["draft"].items():
        head = seconds["acceptance_head"].get(name)
        lines.append(f"- {name}: {1e3 * value:.2f} ms" + (f", its acceptance head {1e3 * head:.3f} ms" if head else ""))
    return lines


def _versions(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)
