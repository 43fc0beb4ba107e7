"""Facts of reports: rich, and from these made up tiny, control, hostile, and many groups."""

from __future__ import annotations

import copy
import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from byte_tokenizer import byte_tokenizer
from logs import sql_sessions, write_lines

from agentspec.analysis.report import ReportConfig, report_facts

HOSTILE = (
    "</title></style><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">",
    "' onmouseover='document.title=1' x=\"y\" {{7*7}} ${7*7} <!--",
    "\x00\x07\x1b[31m\x7f\x9f\ud800\ufffe\u2028 end",
    "\u202egnp.tnega\u2066\u200f \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "a\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308 \U0001f469\u200d\U0001f4bb \u65e5\u672c\u8a9e",
    "x" * 5000,
    "&lt;b&gt; &amp; ]]> */ <svg onload=alert(1)> javascript:alert(1)",
)


@cache
def _facts() -> dict[str, Any]:
    sessions = [{**session, "ts": f"2026-11-{14 + n % 5}"} for n, session in enumerate(sql_sessions(30, seed=0))]
    with TemporaryDirectory() as folder:
        path = write_lines(Path(folder) / "logs.jsonl", [*sessions, {"messages": "none"}])
        return report_facts([path], byte_tokenizer(), ReportConfig(replay=40))


def rich() -> dict[str, Any]:
    """A report on agents with roles, tenants and days, with all facts known."""
    return copy.deepcopy(_facts())


def interval(mean: float, half: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - half, "high": mean + half}


def tiny() -> dict[str, Any]:
    """One session of three outputs: it has no facts about prompts, repeats and speed-ups."""
    facts = rich()
    facts["inputs"] |= {"num_sessions": 1, "num_outputs": 3, "num_prompt_tokens": None, "bad_records": []}
    unsure = interval(1.31, 0.0)
    facts["sets"] = [
        facts["sets"][0] | {"entropy": None, "repeated": None, "accept_length": {"cold": unsure, "warm": None}}
    ]
    facts["replay"] = [row | {"accept_length_warm": None} for row in facts["replay"][:5]]
    facts |= {"entropy": None, "speedup": [], "could_not_tell": ["Speed-ups."]}
    facts["verdict"] |= {"kind": "unknown", "flags": [], "command": "", "by_entropy": None}
    return facts


def control() -> dict[str, Any]:
    """Chat without repeats, so without drafts."""
    facts = rich()
    facts["entropy"] |= interval(3.41, 0.08) | {"reading": "At this value nearly every word is a choice: open chat."}
    facts["sets"] = facts["sets"][:1]
    facts["sets"][0] |= {
        "entropy": interval(3.41, 0.08),
        "repeated": {"own_prompt": 0.06, "other_outputs": 0.08, "both": 0.003, "neither": 0.857},
        "accept_length": {"cold": interval(1.08, 0.02), "warm": interval(1.1, 0.02)},
    }
    for row in facts["replay"]:
        row["accept_length_warm"] = 1.0 + (row["accept_length_warm"] - 1) / 25
    for row in facts["speedup"]:
        row |= {"low": 0.93, "high": 1.04}
    facts["verdict"] |= {"kind": "none", "flags": [], "command": "", "by_entropy": None}
    facts["could_not_tell"] = []
    return facts


def hostile() -> dict[str, Any]:
    """The rich facts with hostile text in every string. Only names of kinds that the page looks up stay unchanged."""
    facts = rich()
    drawn = random.Random(1)

    def spoilt(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            renamed = key == "formats"
            return {drawn.choice(HOSTILE) if renamed else inner: spoilt(v, inner) for inner, v in value.items()}
        if isinstance(value, list):
            return [spoilt(entry) for entry in value]
        if isinstance(value, str) and key not in ("by", "kind", "rule", "what"):
            return drawn.choice(HOSTILE) + value
        return value

    spoilt_facts: dict[str, Any] = spoilt(facts)
    return spoilt_facts


def many() -> dict[str, Any]:
    """Facts of 120 tenants over 60 days."""
    facts = rich()
    draw = random.Random(2)
    facts["sets"] += [_set(draw, "tenant", f"customer-{number:03}.eu-west-1.example") for number in range(120)]
    facts["sets"] += [_set(draw, "day", f"2026-{month:02}-{day:02}") for month in (9, 10) for day in range(1, 31)]
    facts["sets"] += [_set(draw, "role", "a role with an extremely long name that no column can hold " * 3)]
    return facts


CASES = {"rich": rich, "tiny": tiny, "control": control, "hostile": hostile, "many": many}


def _set(draw: random.Random, by: str, name: str) -> dict[str, Any]:
    entropy = draw.uniform(0.3, 2.0)
    warm = 1 + 2.4 / (0.6 + entropy)
    cold = 1 + (warm - 1) * draw.uniform(0.5, 0.8)
    parts = [draw.random() for _ in range(4)]
    keys = ("own_prompt", "other_outputs", "both", "neither")
    return {
        "name": name,
        "by": by,
        "outputs": draw.randrange(20, 2000),
        "output_tokens": draw.randrange(4_000, 400_000),
        "sessions": draw.randrange(2, 200),
        "entropy": interval(entropy, draw.uniform(0.03, 0.15)),
        "repeated": {key: part / sum(parts) for key, part in zip(keys, parts, strict=True)},
        "accept_length": {
            "cold": interval(cold, draw.uniform(0.05, 0.2)),
            "warm": interval(warm, draw.uniform(0.05, 0.25)),
        },
    }
