"""HTML as a type: text is escaped wherever it is put, and only `Markup` is not.

Every string of a report may come from a log. So there is one way into the page, `element`, and it takes plain strings
for text. Characters that a reader cannot see, or that would turn the line around them, are shown by their code.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable

# Joiners change how letters and emoji are drawn and nothing else.
_HARMLESS = {"\N{ZERO WIDTH JOINER}", "\N{ZERO WIDTH NON-JOINER}"}
# Categories without a glyph: controls, formats (bidi marks among them), surrogates, private use.
_UNSEEN = {"Cc", "Cf", "Cs", "Co"}
# More marks than that on one letter would be drawn over the lines above and below.
_MAX_MARKS = 3

# HTML elements without an end; those of SVG have one.
_VOID = {"meta"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | int | None | Iterable["Content"]
"""What may stand in an element: text, markup, nothing, or several of them."""

Attribute = str | float | bool | None


def visible(text: str, limit: int | None = None, lines: bool = False) -> str:
    """The text with each invisible character as ⟨U+XXXX⟩, cut to `limit` characters.

    Args:
        lines: Line feeds and tabs stay.
    """
    if limit is not None and len(text) > limit:
        text = text[: limit - 1].rstrip() + "…"
    parts: list[str] = []
    marks = 0
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks > _MAX_MARKS:
            continue
        unseen = category in _UNSEEN or category in ("Zl", "Zp") or ord(character) & 0xFFFE == 0xFFFE
        if unseen and character not in _HARMLESS and not (lines and character in "\n\t"):
            parts.append(f"⟨U+{ord(character):04X}⟩")
        else:
            parts.append(character)
    return "".join(parts)


def element(tag: str, *children: Content, **attributes: Attribute) -> Markup:
    """One element. Attribute names are Python's: `class_`, `aria_label`; None and False leave one out."""
    opening = tag + "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{join(children)}</{tag}>")


def join(children: Content) -> Markup:
    """What may stand in an element, one after the other."""
    if children is None:
        return Markup()
    if isinstance(children, Markup):
        return children
    if isinstance(children, str | int):
        return Markup(html.escape(visible(str(children)), quote=False))
    return Markup("".join(join(child) for child in children))


def name(text: object, limit: int = 80) -> Markup:
    """A name out of a log: on its own in its line's direction, and cut."""
    return element("bdi", visible(str(text), limit) if text not in (None, "") else "(no name)")


def sentence(text: object, limit: int = 400) -> Markup:
    """A sentence of the facts, which may hold a name out of a log: as `name`."""
    return name(text, limit)


def lines(text: object) -> Markup:
    """Text with its own lines, in which markup has no meaning either."""
    return Markup(html.escape(visible(str(text), lines=True), quote=False))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    key = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {key}"
    return f' {key}="{html.escape(visible(value) if isinstance(value, str) else f"{value:.6g}")}"'
