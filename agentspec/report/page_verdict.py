"""The top of the report: the verdict, the flags to copy, the figures that matter most."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from agentspec.report.page_markup import Content, Markup, element, sentence, visible
from agentspec.report.page_numbers import (
    Interval,
    between,
    count,
    counted,
    decimal,
    interval,
    known,
    share,
    short,
    size,
    times,
)
from agentspec.report.page_parts import Tile, listed, tiles, to_copy
from agentspec.report.page_sets import repeated_share

# kind -> (what it is called, the path of its sign in a box of 24 by 24)
KINDS = {
    "suffix": ("Suffix drafts alone", "M4 12.5 L10 18.5 L20 6.5"),
    "hybrid": ("Suffix drafts beside a model drafter", "M4 8 H20 M4 16 H20 M8 4 V12 M16 12 V20"),
    "model": ("A model drafter alone", "M12 4 L20 12 L12 20 L4 12 Z"),
    "none": ("No speculative decoding", "M5 12 H19"),
    "unknown": ("Not enough to tell", "M8.5 9 A3.5 3.5 0 1 1 12 13 V15 M12 19 V19.5"),
}


def verdict(facts: Mapping[str, Any]) -> Markup:
    """Kind and headline, figures, flags, reasons, what would change it."""
    said = facts.get("verdict") or {}
    kind = said.get("kind") if said.get("kind") in KINDS else "unknown"
    called, sign = KINDS[str(kind)]
    return element(
        "section",
        element(
            "div",
            element(
                "p",
                element("svg", element("path", d=sign), viewBox="0 0 24 24", class_="sign", aria_hidden="true"),
                element("span", "Verdict: ", class_="unseen"),
                called,
                class_="kind",
            ),
            element("h1", sentence(said.get("headline") or f"{called}.", 240), id="verdict-title"),
            element("p", _rests_on(facts), class_="rests-on"),
            class_=f"verdict {kind}",
        ),
        tiles(_tiles(facts)),
        element("div", _advice(said), class_="advice"),
        id="verdict",
        aria_labelledby="verdict-title",
    )


def speedup_range(facts: Mapping[str, Any], concurrency: int) -> tuple[float, float] | None:
    """The widest range of all profiles and controllers at that concurrency."""
    rows = [row for row in facts.get("speedup") or [] if row.get("concurrency") == concurrency]
    lows = [low for row in rows if (low := known(row.get("low"))) is not None]
    highs = [high for row in rows if (high := known(row.get("high"))) is not None]
    return (min(lows), max(highs)) if lows and highs else None


def _rests_on(facts: Mapping[str, Any]) -> list[Content]:
    inputs = facts.get("inputs") or {}
    files = inputs.get("files") or []
    parts = [
        counted(inputs.get("num_outputs"), "output"),
        f"{short(inputs.get('num_output_tokens'))} output tokens",
        counted(inputs.get("num_sessions"), "session"),
        counted(len(files), "file"),
    ]
    said: list[Content] = ["It rests on ", ", ".join(parts), "."]
    missing = facts.get("could_not_tell") or []
    if missing:
        words = f"{counted(len(missing), 'thing')} could not be told"
        said += [" ", element("a", words, href="#limits"), "."]
    return said


def _tiles(facts: Mapping[str, Any]) -> list[Tile]:
    sets = facts.get("sets") or []
    whole: Mapping[str, Any] = next((entry for entry in sets if entry.get("by") == "all"), {})
    lengths = whole.get("accept_length") or {}
    return [
        _length_tile(interval(lengths.get("cold")), interval(lengths.get("warm"))),
        _repetition_tile(whole.get("repeated")),
        _entropy_tile(interval(facts.get("entropy"))),
        _speedup_tile(facts),
        _memory_tile(facts.get("memory") or {}),
    ]


def _length_tile(cold: Interval | None, warm: Interval | None) -> Tile:
    notes = []
    if warm and warm.low is not None:
        notes.append(f"90 % interval {between(warm)}.")
    if cold:
        notes.append(f"Before anything is learnt: {cold.mean:.2f}.")
    return Tile("Accept length, warm", decimal(warm.mean if warm else None), "tokens a step", " ".join(notes))


def _repetition_tile(repeated: Mapping[str, Any] | None) -> Tile:
    return Tile(
        "Repeated text",
        share(repeated_share(repeated)),
        "of output tokens",
        "Seen before in the own prompt or in other outputs.",
    )


def _entropy_tile(entropy: Interval | None) -> Tile:
    note = f"90 % interval {between(entropy)}. " if entropy and entropy.low is not None else ""
    return Tile("Entropy", decimal(entropy.mean if entropy else None), "bits a token", f"{note}Lower repeats more.")


def _speedup_tile(facts: Mapping[str, Any]) -> Tile:
    loads = sorted({row["concurrency"] for row in facts.get("speedup") or [] if known(row.get("concurrency"))})
    first = speedup_range(facts, loads[0]) if loads else None
    value = f"{times(first[0])} to {times(first[1])}" if first else times(None)
    profiles = len({row.get("profile") for row in facts.get("speedup") or []})
    note = "Plain decoding is 1.00×."
    if len(loads) > 1 and (last := speedup_range(facts, loads[-1])):
        note = f"At {count(loads[-1])} at a time: {times(last[0])} to {times(last[1])}."
    if profiles > 1:
        note += f" Over {profiles} cost profiles."
    return Tile("Speed-up, expected", value, f"at {counted(loads[0], 'request')} at a time" if loads else "", note)


def _memory_tile(memory: Mapping[str, Any]) -> Tile:
    budget = known(memory.get("budget_mb"))
    note = f"The budget is {budget:,.0f} MB." if budget is not None else None
    return Tile("Memory", size(memory.get("bytes_per_million_tokens")), "a million tokens", note)


def _advice(said: Mapping[str, Any]) -> list[Markup]:
    parts = []
    flags = [visible(str(flag)) for flag in said.get("flags") or [] if flag is not None]
    commands: list[Content] = []
    if flags:
        commands.append(to_copy("flags", "Flags for the server", shlex.join(flags)))
    if said.get("command"):
        commands.append(to_copy("command", "The whole command", str(said["command"])))
    if not flags and not said.get("command"):
        commands.append(element("p", _without_flags(said), class_="nothing"))
    parts.append(element("div", element("h2", "What to do"), commands, class_="whole"))
    for title, key in (("Why", "reasons"), ("What would change it", "would_change")):
        if said.get(key):
            parts.append(element("div", element("h2", title), listed(sentence(entry) for entry in said[key] if entry)))
    return parts


def _without_flags(said: Mapping[str, Any]) -> str:
    if said.get("kind") == "none":
        return "Nothing to add: start the server as it is."
    return "No flags can be advised on this evidence."
