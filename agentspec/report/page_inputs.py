"""Sections on what the report rests on: what it could not tell, what it read, how it measured, texts if asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentspec.report.page_markup import Content, element, lines, name, sentence, visible
from agentspec.report.page_numbers import UNKNOWN, count, counted, known, seconds
from agentspec.report.page_parts import Column, Section, command, described, listed, scrolled, table

GLOSSARY = (
    ("Accept length", "Tokens a step of the model yields: those it accepted of the draft and one of its own. Without drafts 1."),
    ("Cold, warm", "Cold: only the request's own text is drafted from. Warm: outputs that finished before it, too."),
    ("Interval", "Where 90 % of the means lie when sessions are drawn again at random (bootstrap)."),
    ("Width", "The most tokens that a step verifies for a request."),
    ("Alpha", "SuffixDecoding's rule: a draft is at most alpha times as long as the pattern that matched."),
    ("Tau", "The accepted tokens that a suffix draft must promise to be used; else a model drafter's turn, if there is one."),
    ("Acceptance rate", "Accepted tokens of those drafted. Low rates cost verification, not correctness: outputs never change."),
    ("Concurrency", "Requests that the server decodes in one step."),
)  # fmt: skip


def limits(facts: Mapping[str, Any]) -> Section:
    missing = [sentence(entry) for entry in facts.get("could_not_tell") or [] if entry]
    body: list[Content] = (
        [listed(missing)] if missing else [element("p", "Nothing: every part of the report was measured.")]
    )
    return Section(
        "limits", "Limits", "What could not be told", "What these logs do not answer, and why." if missing else "", body
    )


def inputs(facts: Mapping[str, Any]) -> Section:
    told = facts.get("inputs") or {}
    tokenizer = told.get("tokenizer") or {}
    vocabulary = tokenizer.get("vocabulary_size")
    formats = told.get("formats") or {}
    entries: list[tuple[Content, Content]] = [
        ("Records", f"{counted(told.get('num_records'), 'record')}, of which {count(told.get('num_bad_records'))} bad"),
        ("Formats", [_separated([[name(key, 40), f" {count(value)}"] for key, value in formats.items()]) or UNKNOWN]),
        ("Sessions", count(told.get("num_sessions"))),
        ("Outputs", _outputs(told)),
        (
            "Tokens",
            f"{count(told.get('num_output_tokens'))} in outputs, {_prompt_tokens(told)}",
        ),
        ("Tokenizer", [name(tokenizer.get("name") or UNKNOWN), f", {counted(vocabulary, 'token')}"]),
    ]
    failures = known(told.get("num_round_trip_failures"))
    if failures is not None:
        words = "Every output survives the way to tokens and back."
        if failures:
            words = f"{counted(failures, 'output')} changed on the way to tokens and back: is it the model's tokenizer?"
        entries.append(("Round trip", words))
    body: list[Content] = [described(entries)]
    files = told.get("files") or []
    if files:
        body.append(
            table(
                "Files read",
                [
                    Column("File", number=False),
                    Column("Format", number=False),
                    Column("Records"),
                    Column("Bad records"),
                ],
                [
                    [
                        name(f.get("name")),
                        name(f.get("format"), 40),
                        count(f.get("records")),
                        count(f.get("bad_records")),
                    ]
                    for f in files
                ],
            )
        )
    bad = told.get("bad_records") or []
    if bad:
        total = known(told.get("num_bad_records")) or len(bad)
        first = f"the first {len(bad)} of {total:,.0f}" if total > len(bad) else "all of them"
        body.append(
            table(
                f"Bad records, {first}",
                [Column("File", number=False), Column("Where", number=False), Column("Reason", number=False)],
                [[name(b.get("file")), name(b.get("where"), 60), name(b.get("reason"), 200)] for b in bad],
            )
        )
    return Section("inputs", "Input", "What was read", "Bad records are skipped and counted.", body)


def texts(facts: Mapping[str, Any]) -> Section | None:
    """Only where the facts hold texts, which somebody asked for."""
    found = facts.get("texts")
    if not found:
        return None
    body = [
        element(
            "div",
            element("h3", name(str(entry.get("kind") or "text").capitalize(), 40), ": ", name(entry.get("set"), 60)),
            scrolled(f"text {number}", element("pre", lines(entry.get("text") or ""), dir="auto")),
            class_="text",
        )
        for number, entry in enumerate(found, 1)
    ]
    lead = "Outputs as they were logged, because the report was made with --include-text. Share the page with care."
    return Section("texts", "Texts", "Texts", lead, body)


def method(facts: Mapping[str, Any]) -> Section:
    body: list[Content] = [
        described(
            [
                ("Command", element("code", command(visible(str(facts.get("command") or UNKNOWN), 1000)))),
                ("Made", [name(facts.get("created") or UNKNOWN, 40), f", in {seconds(facts.get('seconds'))}"]),
                (
                    "Version",
                    [
                        "agentspec ",
                        name(facts.get("version") or UNKNOWN, 40),
                        ", facts of schema ",
                        name(facts.get("schema"), 10),
                    ],
                ),
                ("Seed", name(facts.get("seed", UNKNOWN), 40)),
            ]
        ),
        element("h3", "Words used"),
        described(GLOSSARY),
    ]
    lead = "Everything was computed on a CPU from the logs alone: no model ran, and nothing was sent."
    return Section("method", "Method", "How it was measured", lead, body)


def _prompt_tokens(told: Mapping[str, Any]) -> str:
    number = known(told.get("num_prompt_tokens"))
    if number is None:
        return "those of prompts were not counted"
    is_whole = told.get("num_measured_outputs") == told.get("num_outputs")
    return f"{'' if is_whole else 'about '}{count(number)} in prompts"


def _outputs(told: Mapping[str, Any]) -> str:
    parts = [count(told.get("num_outputs"))]
    for key, done in (("num_sampled_outputs", "sampled to analyse"), ("num_measured_outputs", "replayed")):
        if known(told.get(key)) is not None and told[key] != told.get("num_outputs"):
            parts.append(f"{count(told[key])} {done}")
    return ", of which ".join([parts[0], " and ".join(parts[1:])]) if parts[1:] else parts[0]


def _separated(entries: list[list[Content]]) -> list[Content]:
    return [part for place, entry in enumerate(entries) for part in ([", ", *entry] if place else entry)]
