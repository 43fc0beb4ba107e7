"""Figures of a run, from its records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentspec.workflows.text_to_sql.agents.stages import STAGES
from agentspec.workflows.text_to_sql.records import RECORD_OUTCOMES, Record


def summary_of(records: Sequence[Record]) -> dict[str, Any]:
    """The figures of a run: outcomes, accuracy, times, and calls, tokens, fallbacks and accept lengths by stage.

    `accuracy` is over the questions with gold SQL that runs, failed questions included; None if there are none.
    `accuracy_by_difficulty` is the same for each difficulty that the questions name, in the order of the records. Seconds
    per question, and the share of them without a call in progress, are over the questions that did not fail.
    """
    outcomes = Counter(record["outcome"] for record in records)
    difficulties = dict.fromkeys(record.get("difficulty", "") for record in records)
    timed = [record for record in records if record["outcome"] != "error"]
    seconds = sorted(record["seconds"] for record in timed)
    total = sum(seconds)
    failed = next((record["detail"] for record in records if record["outcome"] == "error"), "")
    return {
        "questions": len(records),
        **_accuracy(records),
        "accuracy_by_difficulty": {
            name: _accuracy([record for record in records if record.get("difficulty") == name])
            for name in difficulties
            if name
        },
        "outcomes": {outcome: outcomes[outcome] for outcome in RECORD_OUTCOMES},
        "first_error": failed,
        "seconds_p50": percentile(seconds, 50),
        "seconds_p99": percentile(seconds, 99),
        "outside_share": round(sum(record["outside_seconds"] for record in timed) / total, 4) if total else None,
        "stages": {stage: _stage_figures(stage, records) for stage in STAGES},
    }


def _accuracy(records: Sequence[Record]) -> dict[str, Any]:
    graded = [record for record in records if record["outcome"] != "ungraded" and record["gold"]]
    correct = sum(record["outcome"] == "correct" for record in graded)
    return {"graded": len(graded), "accuracy": round(correct / len(graded), 4) if graded else None}


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """The percentile by nearest rank of ascending values; None if there are none."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)] if ordered else None


def _stage_figures(stage: str, records: Sequence[Record]) -> dict[str, Any]:
    calls = [call for record in records for call in record["calls"] if call["stage"] == stage]
    prompts, answers = [call["prompt_tokens"] for call in calls], [call["completion_tokens"] for call in calls]
    count = max(1, len(calls))
    # The prefill gives the first token of an answer.
    drafted_for = [call for call in calls if call.get("verify_steps")]
    steps = sum(call["verify_steps"] for call in drafted_for)
    return {
        "calls": len(calls),
        "failed_calls": sum(call["stage"] == stage for record in records for call in record["failures"]),
        "fallbacks": sum(record["fallbacks"].count(stage) for record in records),
        "prompt_tokens": sum(prompts),
        "prompt_mean": round(sum(prompts) / count, 1),
        "completion_tokens": sum(answers),
        "completion_mean": round(sum(answers) / count, 1),
        "verify_steps": steps,
        "accept_length": round(sum(call["completion_tokens"] - 1 for call in drafted_for) / steps, 2)
        if steps
        else None,
        "seconds_mean": round(sum(call["seconds"] for call in calls) / count, 4),
    }


def table(summary: dict[str, Any]) -> str:
    """The figures as readable text."""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in summary["outcomes"].items() if count)
    accuracy = summary["accuracy"]
    lines = [
        f"{summary['questions']} questions: {outcomes or 'none'}",
        "execution accuracy " + ("- (no gold SQL)" if accuracy is None else f"{accuracy:.1%} of {summary['graded']}"),
    ]
    for name, part in summary["accuracy_by_difficulty"].items():
        lines.append(
            f"  {name} " + ("-" if part["accuracy"] is None else f"{part['accuracy']:.1%} of {part['graded']}")
        )
    if summary["seconds_p50"] is not None:
        outside = summary["outside_share"]
        lines.append(
            f"seconds a question p50 {summary['seconds_p50']:.2f}, p99 {summary['seconds_p99']:.2f}"
            + (f"; {outside:.1%} of the time outside the model" if outside is not None else "")
        )
    lines.append(
        f"{'stage':<10}{'calls':>7}{'failed':>8}{'fallbacks':>11}{'prompt':>10}{'answer':>9}{'seconds':>9}{'accepted':>10}"
    )
    lines[-1] += "   (tokens and seconds: mean; accepted: tokens a step)"
    for stage, row in summary["stages"].items():
        lines.append(
            f"{stage:<10}{row['calls']:>7}{row['failed_calls']:>8}{row['fallbacks']:>11}"
            f"{row['prompt_mean']:>10.0f}{row['completion_mean']:>9.0f}{row['seconds_mean']:>9.3f}"
            + (f"{row['accept_length']:>10.2f}" if row["accept_length"] else f"{'-':>10}")
        )
    if summary["first_error"]:
        lines.append(f"first error: {summary['first_error']}")
    return "\n".join(lines)
