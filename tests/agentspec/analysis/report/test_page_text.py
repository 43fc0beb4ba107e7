"""Text stays text, and a reader sees every character of it."""

from __future__ import annotations

import unicodedata
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from agentspec.analysis.report.page import environment, lines, name, visible

# The text includes surrogates and unassigned characters, since JSON may hold any character.
TEXT = st.text(st.characters(exclude_categories=[]), min_size=1)
TEMPLATE = environment().from_string('<p aria-label="{{ text }}">{{ text }}</p><p>{{ text|name(100000) }}</p>')


class Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))
        self.texts.append("")

    def handle_data(self, data: str) -> None:
        self.texts[-1] += data


@given(TEXT)
def test_any_text_comes_back_from_elements_and_attributes_as_what_is_visible_of_it(text: str) -> None:
    written = TEMPLATE.render(text=text)
    written.encode("utf-8")
    read = Reader(written)
    assert read.tags == [("p", [("aria-label", visible(text))]), ("p", []), ("bdi", [])]
    assert read.texts == [visible(text), "", visible(text)]


def test_a_name_that_is_missing_is_said_to_be() -> None:
    assert name(None) == name("") == "(no name)"


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
