"""Text stays text, and a reader sees every character that is there."""

from __future__ import annotations

import html
import unicodedata
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from agentspec.report.page_markup import element, lines, visible

# Surrogates and unassigned characters too: JSON may hold any.
TEXT = st.text(st.characters(exclude_categories=[]))


class Attributes(HTMLParser):
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found = (tag, attrs)


@given(TEXT)
def test_any_text_comes_back_from_an_element_as_what_is_visible_of_it(text: str) -> None:
    written = element("p", text)
    inner = written.removeprefix("<p>").removesuffix("</p>")
    assert "<" not in inner
    assert html.unescape(inner) == visible(text)
    written.encode("utf-8")


@given(TEXT)
def test_any_text_comes_back_from_an_attribute(text: str) -> None:
    parser = Attributes()
    parser.feed(element("p", aria_label=text, hidden=True, id=None))
    assert parser.found == ("p", [("aria-label", visible(text)), ("hidden", None)])


@given(TEXT, st.integers(1, 30))
def test_nothing_invisible_is_left_and_cut_text_is_short(text: str, limit: int) -> None:
    shown = visible(text, limit)
    categories = {unicodedata.category(character) for character in shown if character not in "\u200c\u200d"}
    assert not categories & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    assert len(shown) <= limit * len("⟨U+10FFFF⟩")
    if len(text) > limit:
        assert shown.endswith("…")


def test_marks_do_not_pile_up_and_turning_characters_are_named() -> None:
    assert visible("e" + "\u0301" * 50) == "e" + "\u0301" * 3
    assert visible("a\u202eb\x00\nc") == "a⟨U+202E⟩b⟨U+0000⟩⟨U+000A⟩c"
    assert lines("a\tb\n\x1b<i>") == "a\tb\n⟨U+001B⟩&lt;i&gt;"
