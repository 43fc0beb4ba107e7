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
import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import ChainableUndefined, Environment, PackageLoader
from markupsafe import Markup

from agentspec.analysis.report import page_numbers
from agentspec.analysis.report.page_axis import linear

MAX_PLOT_ROWS = 12
"""Sets of each kind that a plot has room for."""
_KINDS = ("all", "role", "tenant", "day", "file")
_PLAIN = (1.0, "plain decoding, 1 token per step")
# Joiners only change how letters and emoji are drawn.
_HARMLESS = {"\N{ZERO WIDTH JOINER}", "\N{ZERO WIDTH NON-JOINER}"}
# Categories without a glyph: controls, formats (bidi marks among them), surrogates, private use, line separators.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
# More marks on one letter would be drawn over the lines above and below.
_MAX_MARKS = 3


def page(facts: Mapping[str, Any]) -> str:
    """The whole document, to be written as UTF-8. `facts`: those of report_facts()."""
    return rendered(environment(), "page.html", facts=facts, sets=_sets(facts["sets"]), gains=facts["speedup"])


def rendered(templates: Environment, name: str, **values: Any) -> str:
    """A document made of a template and the page's script, whose digest the template is given."""
    script = templates.get_template("page.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return templates.get_template(name).render(digest=digest, **values)


@functools.cache
def environment() -> Environment:
    """The environment that renders the templates. It escapes every string and makes invisible characters visible."""
    made = Environment(
        loader=PackageLoader("agentspec.analysis.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        # A value that is null has no fields: they are empty as text and "not known" as numbers.
        undefined=ChainableUndefined,
        finalize=_written,
    )
    made.globals |= {"linear": linear, "PLAIN": _PLAIN}
    numbers = "integer counted short decimal times share size seconds between with_interval"
    made.filters |= {key: getattr(page_numbers, key) for key in numbers.split()}
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


def _sets(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The sets of the facts with what plots need: all outputs first, then by kind; days in their order, others the
    largest first."""
    sets = []
    for row in rows:
        lengths = row["accept_length"] or {"cold": None, "warm": None}
        sets.append(
            {
                **row,
                **lengths,
                "label": "All outputs" if row["by"] == "all" else visible(row["name"], 60),
                "accept_length": lengths["warm"] or lengths["cold"],
                "repeats": 1 - row["repeated"]["neither"] if row["repeated"] else None,
            }
        )

    def place(found: Mapping[str, Any]) -> tuple[int, str, float]:
        return _KINDS.index(found["by"]), found["label"] if found["by"] == "day" else "", -found["output_tokens"]

    return sorted(sets, key=place)


def largest(sets: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """The sets of each kind that a plot has room for: those with the most output tokens, in the given order."""
    kinds = []
    for kind, members in itertools.groupby(sets, key=lambda found: found["by"]):
        of_kind = list(members)
        kept = sorted(of_kind, key=lambda found: found["output_tokens"], reverse=True)[:MAX_PLOT_ROWS]
        kinds.append((kind, [found for found in of_kind if found in kept]))
    return kinds
