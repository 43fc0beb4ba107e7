"""The figures of `agentspec bench hybrid`: rows of one run, medians over runs, and goals."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from agentspec.evals.run.phases import KINDS, SliceResult, TimedCall
from agentspec.progress import say

# Requests in a window. The agents' stages differ in accept length, and a window should hold some of each.
WINDOW = 12
# Share of the steady accept length that counts as recovered.
RECOVERED = 0.9
# Systems with one way of drafting each. A hybrid is compared with the best of them.
SINGLE = ("none", "ngram", "standalone", "eagle3", "eagle3-6", "eagle3-8", "eagle3-chain", "suffix")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One workload on one server."""

    requests: int
    tokens: int
    seconds: float
    verify_steps: int
    """Verified rows."""
    accept_length: float
    """Decoded tokens a verified row. The first token of each request comes from its prefill and does not count."""
    tokens_per_second: float
    """While all streams of the workload run. The rest of a single kind would be another workload."""
    whole_tokens_per_second: float
    """From the first request to the end of the last."""
    tokens_per_cpu_second: float
    """Of the server's processes; other work on the machine changes it less than the wall time."""
    drafter_step_share: float
    """Share of the batch's decode steps in which a draft model ran."""
    more: Mapping[str, Any] = field(default_factory=dict)


def accept_length(calls: Sequence[TimedCall]) -> float:
    steps = sum(call.steps for call in calls)
    return sum(call.tokens - 1 for call in calls) / steps if steps else 0.0


def tokens_until(calls: Sequence[TimedCall], end: float) -> float:
    """Tokens generated until `end`, on the clock of the calls. A call that is still running counts in proportion to its
    time."""
    return sum(call.tokens * min(1.0, max(0.0, (end - call.began) / (call.ended - call.began))) for call in calls)


def together_seconds(calls: Sequence[TimedCall]) -> float:
    """When the first of the kinds had all its answers."""
    kinds = {call.kind for call in calls}
    return min(max(call.ended for call in calls if call.kind == kind) for kind in kinds)


def windows(calls: Sequence[TimedCall], size: int = WINDOW) -> list[float]:
    """Accept length of each group of `size` consecutive requests. The remainder joins the last group."""
    number = max(1, len(calls) // size)
    ends = [size * (i + 1) for i in range(number - 1)] + [len(calls)]
    return [accept_length(calls[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def requests_until_recovered(calls: Sequence[TimedCall], steady: float, size: int = WINDOW) -> int | None:
    """Number of requests before the first window of `size` whose accept length reaches RECOVERED of `steady`; None if
    no window does."""
    last = max(0, len(calls) - size)
    return next(
        (i for i in range(last + 1) if accept_length(calls[i : i + size]) >= RECOVERED * steady),
        None,
    )


def figures(system: str, slices: Sequence[SliceResult]) -> Figures:
    """The figures of a workload from its slices on one server, in order.

    Args:
        system: A key of the bench's systems. SGLang's own draft models run in every step and count nothing.
    """
    calls = [call for one in slices for call in one.calls]
    tokens = sum(call.tokens for call in calls)
    seconds = sum(max(call.ended for call in one.calls) for one in slices)
    together = sum(together_seconds(one.calls) for one in slices)
    steps = sum(one.steps for one in slices)
    in_each_step = 1.0 if system == "standalone" or system.startswith("eagle3") else 0.0
    phases = [[call for one in some for call in one.calls] for _, some in groupby(slices, key=lambda one: one.phase)]
    return Figures(
        requests=len(calls),
        tokens=tokens,
        seconds=round(seconds, 3),
        verify_steps=sum(call.steps for call in calls),
        accept_length=round(accept_length(calls), 3),
        tokens_per_second=round(
            sum(tokens_until(one.calls, together_seconds(one.calls)) for one in slices) / together, 1
        ),
        whole_tokens_per_second=round(tokens / seconds, 1),
        tokens_per_cpu_second=round(tokens / max(sum(one.cpu_seconds for one in slices), 1e-3), 1),
        drafter_step_share=round(sum(one.drafter_steps for one in slices) / steps if steps else in_each_step, 3),
        more={**_by_kind(calls), **(_change(phases) if len(phases) > 1 else {})},
    )


def _by_kind(calls: Sequence[TimedCall]) -> dict[str, Any]:
    found = {kind: [call for call in calls if call.kind == kind] for kind in KINDS}
    if not all(found.values()):
        return {}
    return {
        "by_kind": {
            kind: {
                "requests": len(some),
                "tokens": sum(call.tokens for call in some),
                "accept_length": round(accept_length(some), 3),
            }
            for kind, some in found.items()
        }
    }


def _change(phases: Sequence[Sequence[TimedCall]]) -> dict[str, Any]:
    """How the accept length follows a change of text. The steady value of a kind is that of the second half of its
    first phase."""
    steady: dict[str, float] = {}
    shown, recovered = [], []
    for i, calls in enumerate(phases):
        kind = calls[0].kind
        if kind not in steady:
            steady[kind] = accept_length(calls[len(calls) // 2 :])
        shown.append({"kind": kind, "accept_lengths": [round(value, 3) for value in windows(calls)]})
        if i:
            recovered.append({"to": kind, "requests": requests_until_recovered(calls, steady[kind])})
    return {
        "window_requests": WINDOW,
        "windows": shown,
        "steady": {kind: round(value, 3) for kind, value in steady.items()},
        "recovered_after": recovered,
    }


def merge_runs(
    workload: str, system: str, runs: Sequence[Figures], *, identical: bool | None, error: str = ""
) -> dict[str, Any]:
    """The row of several runs: medians, and their spread. Without a run all figures are None.

    Args:
        identical: Whether all outputs of all runs equal those of plain decoding; None if those are unknown.
        error: Why a run is missing.
    """
    row: dict[str, Any] = {"workload": workload, "system": system}
    names = (
        *("accept_length", "tokens_per_second", "tokens_per_cpu_second"),
        *("drafter_step_share", "whole_tokens_per_second", "seconds"),
    )
    if not runs:
        return {**row, **dict.fromkeys(names), "identical": identical, "runs": 0, "error": error}
    medians = {name: round(statistics.median(getattr(run, name) for run in runs), 3) for name in names}
    speeds = [run.tokens_per_second for run in runs]
    # Values that have no median come from the middle run.
    middle = sorted(runs, key=lambda run: run.tokens_per_second)[(len(runs) - 1) // 2]
    return {
        **row,
        **medians,
        "identical": identical,
        "runs": len(runs),
        "tokens_per_second_runs": speeds,
        "spread": round((max(speeds) - min(speeds)) / medians["tokens_per_second"], 3),
        "requests": middle.requests,
        "tokens": middle.tokens,
        "verify_steps": middle.verify_steps,
        **middle.more,
        **({"error": error} if error else {}),
    }


def best_single(rows: Sequence[Mapping[str, Any]], workload: str) -> Mapping[str, Any] | None:
    """The row of the fastest system with one way of drafting; None if none of them ran."""
    found = [
        row
        for row in rows
        if row["workload"] == workload and row["system"] in SINGLE and row["tokens_per_second"] is not None
    ]
    return max(found, key=lambda row: float(row["tokens_per_second"])) if found else None


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal for a figure of the hybrid."""

    name: str
    value: float | None
    """None if it was not reached within the work."""
    comparison: str
    bound: float

    @property
    def is_met(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.bound if self.comparison == ">=" else self.value <= self.bound

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "target": f"{self.comparison} {self.bound:g}",
            "met": self.is_met,
        }


OUTPUTS = {True: "identical", False: "DIFFERENT", None: "not compared"}
"""How tables show `identical`."""


def say_failures(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Prints each system that failed or whose outputs differ, once; gives whether there is one."""
    failed = [row for row in rows if row.get("error") or row["identical"] is False]
    # A server that does not start fails in all workloads alike.
    for line in dict.fromkeys(
        f"{row['system']}: {row.get('error') or 'outputs differ from plain decoding'}" for row in failed
    ):
        say(line)
    return bool(failed)


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    """The goals that the rows allow to check, all of them for the system `hybrid`."""
    found: list[Goal] = []
    for row in rows:
        workload = row["workload"]
        if row["system"] != "hybrid" or row["tokens_per_second"] is None:
            continue
        best = best_single(rows, workload)
        if best is not None:
            ratio = round(row["tokens_per_second"] / best["tokens_per_second"], 3)
            found.append(
                Goal(f"{workload}: tokens/s over {best['system']}", ratio, ">=", 1.1 if workload == "mix" else 0.99)
            )
        if workload == "agents":
            found.append(Goal("agents: steps with the drafter", row["drafter_step_share"], "<=", 0.3))
        found += [
            Goal(f"change to {change['to']}: requests until recovered", change["requests"], "<=", 200)
            for change in row.get("recovered_after", ())
        ]
    return found
