"""Made-up facts of reports, as the report would find them in logs: rich, tiny, control, hostile, and many groups."""

from __future__ import annotations

import random
from typing import Any

HOSTILE = (
    "</title></style><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">",
    "' onmouseover='document.title=1' x=\"y\" {{7*7}} ${7*7} <!--",
    "\x00\x07\x1b[31m\x7f\x9f\ud800\ufffe\u2028 end",
    "\u202egnp.tnega\u2066\u200f \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "a\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308 \U0001f469\u200d\U0001f4bb \u65e5\u672c\u8a9e",
    "x" * 5000,
    "&lt;b&gt; &amp; ]]> */ <svg onload=alert(1)> javascript:alert(1)",
)


def interval(mean: float, half: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - half, "high": mean + half}


def rich() -> dict[str, Any]:
    """Agents with roles, tenants and days, with all facts known."""
    draw = random.Random(0)
    by = [
        ("role", ["planner", "sql_writer", "sql_fixer", "answer_checker", "summary"]),
        ("tenant", ["acme", "globex", "initech"]),
        ("day", [f"2026-11-{day:02}" for day in range(14, 19)]),
    ]
    return {
        "schema": 1,
        "version": "0.1.0",
        "command": "agentspec report logs.jsonl traces/ --tokenizer tokenizer.json --out report.html",
        "created": "2026-11-21T12:00:00Z",
        "seed": 0,
        "seconds": 42.31,
        "inputs": {
            "files": [
                {"name": "logs.jsonl", "format": "openai", "records": 4980, "bad_records": 2},
                {"name": "traces/run-7.traj", "format": "swe-agent", "records": 230, "bad_records": 1},
            ],
            "formats": {"openai": 4980, "swe-agent": 230},
            "num_records": 5210,
            "num_bad_records": 3,
            "bad_records": [
                {"file": "logs.jsonl", "where": "line 12", "reason": "no messages and no prompt"},
                {"file": "logs.jsonl", "where": "line 4012", "reason": "not JSON: cut in the middle of a string"},
                {"file": "traces/run-7.traj", "where": "step 3", "reason": "the output is empty"},
            ],
            "tokenizer": {"name": "tokenizer.json", "vocabulary_size": 128256},
            "num_sessions": 412,
            "num_outputs": 5207,
            "num_output_tokens": 1_912_345,
            "num_prompt_tokens": 24_812_001,
            "num_sampled_outputs": 1000,
            "num_measured_outputs": 350,
            "num_round_trip_failures": 0,
        },
        "entropy": {
            **interval(0.84, 0.06),
            "outputs": 1000,
            "tokens": 367_112,
            "method": "Mean over the nodes of a suffix tree of the outputs, each weighted by how often it was passed.",
            "reading": "At this value most of what follows a known context is known too; text-to-SQL agents lie here.",
        },
        "sets": [_whole(), *(_set(draw, kind, name) for kind, names in by for name in names)],
        "learning_curve": [
            {"outputs": at, "accept_length": mean, "low": mean - 0.4 / at**0.2, "high": mean + 0.4 / at**0.2}
            for at, mean in [(1, 1.9), (3, 2.1), (10, 2.4), (30, 2.7), (100, 2.95), (300, 3.1), (1000, 3.22)]
        ],
        "growth": {
            "log_scale": 0.72,
            "exponent": 0.06,
            "at_ten_times": 3.61,
            "at_ten_times_low": 3.2,
            "at_ten_times_high": 4.1,
        },
        "replay": [
            _replay(draw, rule, alpha, width, tau)
            for tau in (0.0, 2.0)
            for rule, alpha in [("calibrated", None), *(("suffixdecoding", alpha) for alpha in (1.0, 2.0, 4.0))]
            for width in (4, 8, 16, 32, 64)
        ],
        "speedup": [
            {
                "profile": profile,
                "concurrency": concurrency,
                "low": low * factor,
                "high": high * factor,
                "controller": "goodput",
                "cold": {"outputs": 350, "accept_length": 2.4, "low": low * factor, "high": (low + high) / 2 * factor},
                "warm": {"outputs": 4857, "accept_length": 3.1, "low": high * 0.9 * factor, "high": high * factor},
            }
            for profile, factor in (("vicuna-7b-a100 (built in)", 1.0), ("profile.json", 1.12))
            for concurrency, low, high in ((1, 1.8, 2.6), (8, 1.5, 2.1), (64, 0.98, 1.24))
        ],
        "memory": {
            "bytes_per_token": 17.6,
            "index_bytes": 33_657_272,
            "bytes_per_million_tokens": 17_600_000,
            "budget_mb": 256,
            "outputs_that_fit": 39_604,
        },
        "differences": [
            {
                "by": "tenant",
                "low_set": "initech",
                "high_set": "acme",
                "what": "accept_length",
                "low": 2.1,
                "high": 3.9,
                "text": "Outputs of acme are accepted nearly twice as far as those of initech.",
            },
            {
                "by": "day",
                "low_set": "2026-11-14",
                "high_set": "2026-11-18",
                "what": "entropy",
                "low": 0.7,
                "high": 1.1,
                "text": "Outputs of the first day repeat more than those of the last.",
            },
        ],
        "verdict": {
            "kind": "hybrid",
            "headline": "Suffix drafts suit these agents; a model drafter beside them would serve the planner.",
            "reasons": [
                "Three of four output tokens stood in the prompt or in another output before.",
                "A step yields 3.1 tokens once 1,000 outputs have been learnt, 2.2 before.",
                "The planner's outputs are new text: 1.5 tokens a step.",
            ],
            "flags": [
                "--speculative-algorithm",
                "AGENTSPEC",
                "--agentspec-base",
                "EAGLE3",
                "--agentspec-budget-mb",
                "256",
            ],
            "command": "python -m sglang.launch_server --model-path MODEL --speculative-algorithm AGENTSPEC "
            "--speculative-draft-model-path DRAFTER --agentspec-base EAGLE3 --agentspec-budget-mb 256",
            "would_change": [
                "Above 64 requests at a time the gain is within its error: measure with agentspec profile."
            ],
            "by_entropy": {
                "kind": "suffix",
                "accept_length": {"mean": 4.4, "low": 2.4, "high": 8.2},
                "text": "The entropy alone, 1.50 bits, would let expect 4.4 tokens per step. The replay reached 2.4 only.",
            },
        },
        "could_not_tell": ["Whether other weeks look alike: the logs hold five days."],
    }


def tiny() -> dict[str, Any]:
    """One session of three outputs: it has hardly a curve, and no facts about prompts, repeats and speed-ups."""
    facts = rich()
    facts["inputs"] |= {"num_sessions": 1, "num_outputs": 3, "num_prompt_tokens": None, "bad_records": []}
    unsure = interval(1.31, 0.0)
    facts["sets"] = [
        facts["sets"][0] | {"entropy": None, "repeated": None, "accept_length": {"cold": unsure, "warm": None}}
    ]
    facts["learning_curve"] = facts["learning_curve"][:1]
    facts["replay"] = [row | {"accept_length_warm": None} for row in facts["replay"][:5]]
    facts |= {"entropy": None, "growth": None, "speedup": [], "differences": [], "could_not_tell": ["Speed-ups."]}
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
    for row in facts["learning_curve"]:
        row |= {"accept_length": 1.08, "low": 1.05, "high": 1.11}
    for row in facts["replay"]:
        row["accept_length_warm"] = 1.0 + (row["accept_length_warm"] - 1) / 25
    for row in facts["speedup"]:
        row |= {"low": 0.93, "high": 1.04}
    facts["differences"] = []
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
        if isinstance(value, str) and key not in ("by",) and value != "hybrid":
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


def _whole() -> dict[str, Any]:
    return {
        "name": "all",
        "by": "all",
        "outputs": 5207,
        "output_tokens": 1_912_345,
        "sessions": 412,
        "entropy": interval(0.84, 0.06),
        "repeated": {"own_prompt": 0.24, "other_outputs": 0.21, "both": 0.3, "neither": 0.25},
        "accept_length": {"cold": interval(2.2, 0.09), "warm": interval(3.1, 0.12)},
    }


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


def _replay(draw: random.Random, rule: str, alpha: float | None, width: int, tau: float) -> dict[str, Any]:
    warm = 1 + 2.3 * (1 - 2 ** (-width / 8)) * (1 if alpha is None else 0.55 + 0.08 * alpha) * (1 - 0.1 * tau)
    return {
        "alpha": alpha,
        "width": width,
        "tau": tau,
        "rule": rule,
        "accept_length_cold": 1 + (warm - 1) * draw.uniform(0.6, 0.7),
        "accept_length_warm": warm,
        "drafted_per_step": width * draw.uniform(0.4, 0.8),
        "acceptance_rate": draw.uniform(0.2, 0.5),
        "draft_share": draw.uniform(0.6, 0.9) / (1 + tau),
    }
