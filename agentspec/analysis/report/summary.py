"""A few lines of the facts for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from agentspec.analysis.report.page_numbers import with_interval

_SHOWN = 4
"""Rows of what was not read; the JSON facts have all."""


def summary(facts: dict[str, Any]) -> str:
    """The verdict, then the figures that it is based on, then the limits of the report."""
    return "\n".join(_lines(facts))


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    verdict, inputs = facts["verdict"], facts["inputs"]
    yield verdict["headline"]
    if verdict["command"]:
        yield f"  {verdict['command']}"
    yield ""
    formats = ", ".join(f"{count} {name}" for name, count in inputs["formats"].items())
    yield f"read        {inputs['num_outputs']} outputs, {inputs['num_output_tokens']} tokens, {inputs['num_sessions']} sessions ({formats})"
    yield f"replayed    {inputs['num_measured_outputs']} outputs, {inputs['num_measured_tokens']} tokens, {inputs['num_measured_sessions']} sessions"
    yield from _unread(inputs)
    if inputs["num_bad_records"]:
        first = inputs["bad_records"][0]
        yield f"bad         {inputs['num_bad_records']} records, the first in {first['file']}, {first['where']}: {first['reason']}"
    if facts["entropy"]:
        yield f"entropy     {with_interval(facts['entropy'])} bits over {facts['entropy']['outputs']} outputs"
        yield f"            {facts['entropy']['reading']}"
        if verdict["by_entropy"]:
            yield f"            {verdict['by_entropy']['text']}"
    everything = facts["sets"][0]
    lengths = everything["accept_length"] or {}
    for name, words in (("cold", "nothing learnt"), ("warm", "other sessions learnt")):
        if lengths.get(name):
            yield f"{name:<11} {with_interval(lengths[name])} tokens per step, {words}"
    if everything["repeated"]:
        shares = ", ".join(f"{share:.0%} {place.replace('_', ' ')}" for place, share in everything["repeated"].items())
        yield f"repeated    {shares}"
    for row in facts["speedup"]:
        yield f"speed-up    {row['low']:.2f} to {row['high']:.2f} at concurrency {row['concurrency']} ({row['profile']})"
    if facts["speedup"]:
        yield "            `agentspec eval --emulate h200-8b --log FILE` replays the log beside EAGLE-3 and NGRAM"
    memory = facts["memory"]
    yield f"memory      {memory['bytes_per_token']:.1f} bytes per token, {memory['index_bytes'] / 1e6:.1f} MB for this log"
    shown = [entry for entry in facts["sets"] if entry["by"] != "all"]
    if shown:
        yield ""
        yield f"{'set':<32}{'outputs':>9}{'entropy':>9}{'cold':>7}{'warm':>7}"
        for entry in shown:
            lengths = entry["accept_length"] or {}
            yield (
                f"{entry['by'] + ' ' + entry['name']:<32.31}{entry['outputs']:>9}{_mean(entry['entropy']):>9}"
                f"{_mean(lengths.get('cold')):>7}{_mean(lengths.get('warm')):>7}"
            )
    if facts["could_not_tell"]:
        yield ""
        yield "Limits of this report:"
        for note in facts["could_not_tell"]:
            yield f"  {note}"


def _unread(inputs: dict[str, Any]) -> Iterator[str]:
    """What the figures are not of."""
    if inputs["understood"] < 1:
        yield f"understood  {math.floor(1000 * inputs['understood']) / 10:.1f} % of the log"
    for name, key in (("not read", "not_understood"), ("left out", "left_out")):
        rows = inputs[key]
        for i, row in enumerate(rows[:_SHOWN]):
            yield f"{'' if i else name:<12}{row['count']} x {row['what']} ({row['where']}, {row['characters']} characters)"
        if len(rows) > _SHOWN:
            yield f"{'':<12}and {len(rows) - _SHOWN} others"
    rows = inputs["without_answer"]
    for i, row in enumerate(rows[:_SHOWN]):
        yield f"{'' if i else 'no answer':<12}{row['records']} x {row['reason']}"
    if len(rows) > _SHOWN:
        yield f"{'':<12}and {sum(row['records'] for row in rows[_SHOWN:])} others"


def _mean(interval: dict[str, float] | None) -> str:
    return f"{interval['mean']:.2f}" if interval else "-"
