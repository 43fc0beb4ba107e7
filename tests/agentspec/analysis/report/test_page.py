"""The page: well formed, and harmless whatever the facts hold. Its texts, numbers and axes."""

from __future__ import annotations

import html
import unicodedata
from html.parser import HTMLParser

from every import every
from hypothesis import given
from hypothesis import strategies as st
from page_facts import CASES, rich

from agentspec.analysis.report.page import environment, lines, name, page, visible
from agentspec.analysis.report.page_axis import Axis, linear
from agentspec.analysis.report.page_numbers import (
    UNKNOWN,
    between,
    counted,
    integer,
    seconds,
    share,
    short,
    size,
    times,
    with_interval,
)

# Elements without an end tag in HTML.
VOID = {"meta"}


class Reader(HTMLParser):
    """Collects the elements in order, each with its attributes and the elements around it, and the text outside styles
    and scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), tuple(self._open)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self._open):
            self.text.append(data)


@every("case", CASES)
def test_nothing_in_the_facts_becomes_markup(case: str) -> None:
    text = page(CASES[case]())
    text.encode("utf-8")
    read = Reader(text)
    tags = [tag for tag, _, _ in read.elements]
    assert tags.count("script") == tags.count("style") == tags.count("h1") == 1
    assert not {"img", "link", "iframe", "object", "base", "form", "input"} & set(tags)
    for _, attributes, _ in read.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "xlink:href")]
        assert (attributes.get("href") or "#").startswith("#")
    shown = "".join(read.text)
    assert not {
        character for character in shown if unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"
    }
    assert not set("\u202e\u2066\u200f\u2028") & set(shown)


def test_ids_are_unique_and_every_link_and_label_leads_somewhere() -> None:
    read = Reader(page(CASES["hostile"]()))
    ids = [attributes["id"] for _, attributes, _ in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes, _ in read.elements:
        for key in ("href", "aria-labelledby", "data-copy"):
            if key in attributes:
                assert str(attributes[key]).removeprefix("#") in ids


def test_every_plot_is_described_and_has_its_table() -> None:
    text = page(rich())
    figures = text.split("<figure>")[1:]
    assert len(figures) == 5
    for drawn in figures:
        drawn = drawn.split("</figure>")[0]
        assert "<table" in drawn
        assert drawn.count('role="img"') == drawn.count('role="img" aria-label="') <= 1


def test_the_flags_are_quoted_for_a_shell() -> None:
    facts = rich()
    facts["verdict"]["flags"] = ["--agentspec-corpora", "my corpus.seg", "--agentspec-tau", "$(reboot)"]
    text = html.unescape(page(facts))
    assert "--agentspec-corpora 'my corpus.seg' </span>" in text
    assert "'$(reboot)'" in text


def test_what_was_not_measured_is_said_to_be() -> None:
    text = "".join(Reader(page(CASES["tiny"]())).text)
    assert "Not enough data to tell" in text
    assert text.count("This could not be measured.") == 3


def test_a_plot_draws_the_largest_of_many_sets_and_says_so() -> None:
    facts = CASES["many"]()
    tenants = [entry for entry in facts["sets"] if entry["by"] == "tenant"]
    largest = max(tenants, key=lambda entry: entry["output_tokens"])["name"]
    least = min(tenants, key=lambda entry: entry["output_tokens"])["name"]
    plot = page(facts).split('id="entropy"')[1].split("<details>")[0]
    assert largest in plot
    assert least not in plot
    assert f"of {len(facts['sets'])} sets: of each kind those with the most output" in plot


# The text includes surrogates and unassigned characters, since JSON may hold any character.
TEXT = st.text(st.characters(exclude_categories=[]), min_size=1)
TEMPLATE = environment().from_string('<p aria-label="{{ text }}">{{ text }}</p><p>{{ text|name(100000) }}</p>')


@given(TEXT)
def test_any_text_comes_back_from_elements_and_attributes_as_what_is_visible_of_it(text: str) -> None:
    written = TEMPLATE.render(text=text)
    written.encode("utf-8")
    read = Reader(written)
    assert [(tag, attributes) for tag, attributes, _ in read.elements] == [
        ("p", {"aria-label": visible(text)}), ("p", {}), ("bdi", {}),
    ]  # fmt: skip
    assert "".join(read.text) == 2 * visible(text)


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


@every("value", [None, "3", []])
def test_what_is_no_number_is_not_known(value: object) -> None:
    assert {write(value) for write in (integer, short, share, size, times, seconds)} == {UNKNOWN}


def test_shares_are_all_or_nothing_only_if_they_are() -> None:
    values = [0, 0.001, 0.25, 0.996, 1]
    assert [share(value) for value in values] == ["0 %", "< 1 %", "25 %", "> 99 %", "100 %"]


def test_sizes_and_counts_keep_three_digits() -> None:
    assert [size(value) for value in (17.6, 999, 33_657_272, 4e9)] == ["17.6 B", "999 B", "33.7 MB", "4.00 GB"]
    assert [short(value) for value in (612, 12_345, 999_960, 1_912_345)] == [
        "612",
        "12.3 thousand",
        "1.00 million",
        "1.91 million",
    ]
    assert [seconds(value) for value in (0.5, 42.31, 125, 7200)] == ["0.50 s", "42.3 s", "2 min 5 s", "2.0 h"]
    assert counted(1, "session") == "1 session"
    assert counted(2000, "session") == "2,000 sessions"
    assert counted(None, "session") == f"sessions {UNKNOWN}"


def test_an_interval_may_lack_its_bounds() -> None:
    whole = {"mean": 2.9, "low": 2.6, "high": 3.2}
    assert with_interval(whole) == "2.90 (2.60 to 3.20)"
    assert between({"mean": 2.9, "low": None, "high": None}) == between(None) == ""


VALUES = st.lists(st.floats(0, 1e12, allow_subnormal=False).map(lambda value: round(value, 6)), min_size=1, max_size=20)


def check(axis: Axis, values: list[float]) -> None:
    assert list(axis.ticks) == sorted(set(axis.ticks))
    assert all(axis.low * (1 - 1e-9) <= tick <= axis.high * (1 + 1e-9) for tick in axis.ticks)
    assert all(axis.low <= value <= axis.high * (1 + 1e-9) for value in values)
    places = [axis.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 100 for place in places)


@given(VALUES, st.sampled_from([0.0, 1.0]))
def test_a_linear_axis_spans_its_values_from_its_start(values: list[float], start: float) -> None:
    axis = linear("x", values, start=start)
    check(axis, [*values, start])
    assert 2 <= len(axis.ticks) <= 8


def test_ticks_are_round_and_labelled_shortly() -> None:
    axis = linear("x", [3.4], start=1.0, reference=(1.0, "plain"), suffix="×")
    assert [axis.tick(tick) for tick in axis.ticks] == ["1×", "1.5×", "2×", "2.5×", "3×", "3.5×"]
    axis = linear("x", [2_000_000])
    assert [axis.tick(tick) for tick in axis.ticks] == ["0", "500k", "1M", "1.5M", "2M"]
