"""Text of a log on the page: every character of it is visible, and none affects the text around it."""

from __future__ import annotations

import unicodedata

from markupsafe import Markup

# Joiners only change how letters and emoji are drawn.
_HARMLESS = {"\N{ZERO WIDTH JOINER}", "\N{ZERO WIDTH NON-JOINER}"}
# Categories without a glyph: controls, formats (bidi marks among them), surrogates, private use, line separators.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
# More marks on one letter would be drawn over the lines above and below.
_MAX_MARKS = 3


def visible(text: str, limit: int | None = None, lines: bool = False) -> str:
    """The text with each invisible character as ⟨U+XXXX⟩.

    Args:
        text: Any text.
        limit: The number of characters to cut it to.
        lines: Whether line feeds and tabs stay.
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
