"""The report as one HTML file: no network, no fonts, readable without scripts, on a phone and on paper.

The facts, a dictionary made by this folder's other modules, may come from any log. They reach the page through
page_markup.py alone, which escapes them, and the page's own policy forbids to load anything and to run any script
but the one whose digest it names.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentspec.report import page_expected, page_inputs, page_replay, page_sets
from agentspec.report.page_markup import Markup, element, visible
from agentspec.report.page_parts import Section, section
from agentspec.report.page_plots import patterns
from agentspec.report.page_verdict import verdict


def page(facts: Mapping[str, Any]) -> str:
    """The whole document, to be written as UTF-8.

    Args:
        facts: As schema.json describes them. What is missing, null or not finite is shown as not known.
    """
    parts = [
        page_sets.entropy(facts),
        page_sets.repetition(facts),
        page_sets.accept_lengths(facts),
        page_expected.learning(facts),
        page_replay.replay(facts),
        page_expected.speedup(facts),
        page_expected.memory(facts),
        page_sets.differences(facts),
        page_inputs.limits(facts),
        page_inputs.inputs(facts),
        page_inputs.texts(facts),
        page_inputs.method(facts),
    ]
    sections = [part for part in parts if part is not None]
    body = element(
        "body",
        element("a", "Skip to the verdict", href="#verdict", class_="skip"),
        patterns(),
        _header(facts),
        element("div", _contents(sections), _main(facts, sections), class_="columns"),
        element("footer", element("p", f"agentspec {_short(facts.get('version'))} · {_short(facts.get('created'))}")),
        element("p", id="said", class_="unseen", role="status"),
        element("script", Markup(_file("page_script.js"))),
    )
    return f"<!doctype html>\n{element('html', _head(facts), body, lang='en', dir='ltr')}\n"


def _head(facts: Mapping[str, Any]) -> Markup:
    headline = visible(str((facts.get("verdict") or {}).get("headline") or "suitability report"), 120)
    digest = base64.b64encode(hashlib.sha256(_file("page_script.js").encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"agentspec report: {headline}"),
        element("style", Markup(_file("page_style.css"))),
    )


def _header(facts: Mapping[str, Any]) -> Markup:
    made = _short(facts.get("created"))[:10]
    return element(
        "header",
        element("span", "agentspec", class_="brand"),
        element("span", "Suitability report"),
        element("time", made, datetime=made) if made else None,
    )


def _contents(sections: Sequence[Section]) -> Markup:
    links = [("verdict", "Verdict"), *((part.key, part.short) for part in sections)]
    return element(
        "nav",
        element("ol", [element("li", element("a", title, href=f"#{key}")) for key, title in links]),
        aria_label="Contents",
    )


def _main(facts: Mapping[str, Any], sections: Sequence[Section]) -> Markup:
    return element("main", verdict(facts), [section(part) for part in sections], id="main")


def _short(value: object) -> str:
    return visible(str(value or ""), 40)


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
