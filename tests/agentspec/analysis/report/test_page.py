"""The page as text: well formed, and harmless whatever the facts hold."""

from __future__ import annotations

import html
import unicodedata
from html.parser import HTMLParser

from every import every
from page_facts import CASES, rich

from agentspec.analysis.report.page import page

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
    assert len(figures) == 6
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
