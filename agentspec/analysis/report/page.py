"""The report as one HTML file: no network, no fonts, readable without scripts, on a phone and on paper.

The page itself is in templates/. Strings of the facts may come from any log, so the environment escapes every string
that a template writes and shows invisible characters by their code. The page's own policy lets it load nothing and run
only the script whose digest it names.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import math
import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import ChainableUndefined, Environment, PackageLoader
from markupsafe import Markup

from agentspec.analysis.report import page_numbers
from agentspec.analysis.report.page_axis import Axis, linear, logarithmic
from agentspec.analysis.report.page_numbers import Interval, interval, known

MAX_PLOT_ROWS = 12
"""Sets of each kind that a plot has room for."""
_KINDS = ("all", "role", "tenant", "day", "file")
_PLAIN = (1.0, "plain decoding, 1 token per step")
_LOGARITHMIC_FROM = 20.0
"""Ratio of the last number of outputs to the first from which a linear axis would crowd the early outputs."""
# Joiners only change how letters and emoji are drawn.
_HARMLESS = {"\N{ZERO WIDTH JOINER}", "\N{ZERO WIDTH NON-JOINER}"}
# Categories without a glyph: controls, formats (bidi marks among them), surrogates, private use, line separators.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
# More marks on one letter would be drawn over the lines above and below.
_MAX_MARKS = 3


@dataclass(frozen=True, slots=True, eq=False)
class OutputSet:
    """A set of outputs, for example those of one role; a measure is None where it is not known."""

    label: str
    by: str
    outputs: float | None
    tokens: float | None
    entropy: Interval | None
    cold: Interval | None
    warm: Interval | None
    repeated: Mapping[str, float]

    @property
    def accept_length(self) -> Interval | None:
        return self.warm or self.cold

    @property
    def repeats(self) -> float | None:
        """The share of output tokens that appeared before."""
        neither = self.repeated.get("neither")
        return None if neither is None else 1 - neither


def page(facts: Mapping[str, Any]) -> str:
    """The whole document, to be written as UTF-8.

    Args:
        facts: As schema.py describes them. Values that are missing, null or not finite are shown as not known.
    """
    facts = _finite(facts)
    script = environment().get_template("page.js").render()
    points = _points(facts)
    return (
        environment()
        .get_template("page.html")
        .render(
            facts=facts,
            digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            sets=_sets(facts),
            points=points,
            axes=_curve_axes(points) if points else None,
            gains=[row for row in facts.get("speedup") or [] if None not in (row.get("low"), row.get("high"))],
            grids=_grids(facts.get("replay") or []),
        )
    )


@functools.cache
def environment() -> Environment:
    """The environment that renders the templates. It escapes every string and makes invisible characters visible."""
    made = Environment(
        loader=PackageLoader("agentspec.analysis.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        # Facts may lack anything: a missing value is empty as text and "not known" as a number.
        undefined=ChainableUndefined,
        finalize=_written,
    )
    made.globals |= {"linear": linear, "PLAIN": _PLAIN}
    filters = (
        "integer",
        "counted",
        "short",
        "decimal",
        "times",
        "share",
        "size",
        "seconds",
        "between",
        "with_interval",
    )
    made.filters |= {key: getattr(page_numbers, key) for key in (*filters, "interval")}
    made.filters |= {
        "lines": lines,
        "name": name,
        "visible": lambda text, limit: visible(str(text), limit),
        "largest": largest,
        "shell": lambda words: shlex.join(visible(str(word)) for word in words if word is not None),
        "by_flag": lambda text: re.split(r"(?<= )(?=--)", str(text)),
    }
    return made


def _written(value: object) -> object:
    """The text that a template writes for a value. Every string except markup is made visible."""
    if value is None:
        return ""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def visible(text: str, limit: int | None = None, lines: bool = False) -> str:
    """The text, cut to `limit` characters, with each invisible character as ⟨U+XXXX⟩; with `lines`, line feeds and tabs
    stay."""
    if limit is not None and len(text) > limit:
        text = text[: limit - 1].rstrip() + "…"
    parts: list[str] = []
    marks = 0
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks > _MAX_MARKS:
            continue
        unseen = category in _UNSEEN or ord(character) & 0xFFFE == 0xFFFE
        if unseen and character not in _HARMLESS and not (lines and character in "\n\t"):
            parts.append(f"⟨U+{ord(character):04X}⟩")
        else:
            parts.append(character)
    return "".join(parts)


def name(text: object, limit: int = 80) -> Markup:
    """A name or sentence that may come from a log, isolated from the direction of the text around it."""
    shown = "" if text is None else str(text)
    return Markup("<bdi>{}</bdi>").format(visible(shown, limit)) if shown else Markup("(no name)")


def lines(text: object) -> Markup:
    """Text that keeps its line feeds and tabs."""
    return Markup("{}").format(visible(str(text), lines=True))


def _finite(value: Any) -> Any:
    """The facts with None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _sets(facts: Mapping[str, Any]) -> list[OutputSet]:
    """The sets of the facts: all outputs first, then by kind; days in their order, others the largest first."""
    sets = []
    for entry in facts.get("sets") or []:
        by, lengths = str(entry.get("by") or ""), entry.get("accept_length") or {}
        sets.append(
            OutputSet(
                label="All outputs" if by == "all" else visible(str(entry.get("name") or "(no name)"), 60),
                by=by,
                outputs=entry.get("outputs"),
                tokens=entry.get("output_tokens"),
                entropy=interval(entry.get("entropy")),
                cold=interval(lengths.get("cold")),
                warm=interval(lengths.get("warm")),
                repeated=entry.get("repeated") or {},
            )
        )

    def place(found: OutputSet) -> tuple[int, str, float]:
        kind = _KINDS.index(found.by) if found.by in _KINDS else len(_KINDS)
        return kind, found.label if found.by == "day" else "", -(found.tokens or 0)

    return sorted(sets, key=place)


def largest(sets: Sequence[OutputSet]) -> list[tuple[str, list[OutputSet]]]:
    """The sets of each kind that a plot has room for: those with the most output tokens, in the given order."""
    kinds = []
    for kind, members in itertools.groupby(sets, key=lambda found: found.by):
        of_kind = list(members)
        kept = sorted(of_kind, key=lambda found: found.tokens or 0, reverse=True)[:MAX_PLOT_ROWS]
        kinds.append((kind, [found for found in of_kind if found in kept]))
    return kinds


def _points(facts: Mapping[str, Any]) -> list[tuple[float, Interval]]:
    """The learning curve: outputs learnt from and the accept length, ascending."""
    points = []
    for row in facts.get("learning_curve") or []:
        at, length = known(row.get("outputs")), interval({**row, "mean": row.get("accept_length")})
        if at is not None and length is not None:
            points.append((at, length))
    return sorted(points, key=lambda point: point[0])


def _curve_axes(points: Sequence[tuple[float, Interval]]) -> tuple[Axis, Axis]:
    title = "finished outputs learnt from"
    # A logarithmic axis has no 0: a server that has learnt nothing is drawn at one output.
    positive = [max(at, 1.0) for at, _ in points]
    is_wide = positive[-1] / positive[0] >= _LOGARITHMIC_FROM
    x = logarithmic(f"{title}, logarithmic", positive) if is_wide else linear(title, [at for at, _ in points])
    lengths = [value for _, length in points for value in length if value is not None]
    return x, linear("accept length, tokens per step", lengths, start=1.0, reference=_PLAIN)


def _grids(rows: Sequence[Mapping[str, Any]]) -> dict[float, dict[tuple[str, float | None], dict[float, Any]]]:
    """Rows of the replay by tau, then by rule and alpha, then by width."""
    grids: dict[float, dict[tuple[str, float | None], dict[float, Any]]] = {}
    for row in rows:
        tau, width = known(row.get("tau")), known(row.get("width"))
        if tau is not None and width is not None:
            rule = str(row.get("rule") or ""), known(row.get("alpha"))
            grids.setdefault(tau, {}).setdefault(rule, {})[width] = row
    return grids
