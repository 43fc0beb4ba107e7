"""The records of `agentspec eval`: a system's figures in one cell, and its comparison with the other systems.

tokens_per_second      answer tokens over seconds, which run from the first request to the last answer of each turn
goodput                accepted and bonus tokens a second, without the first token of each request (from its prefill)
accept_length          decoded tokens a verified row, bonus token included
acceptance_rate        accepted over drafted tokens; SGLang's own drafters count as drafting their full width
ttft_ms, tpot_ms       time to first token, and time per further token; mean, p50 and p99 over requests
latency_p50_s, _p99_s  of requests
draft_share            seconds of drafting over seconds of drafting and verifying; None where they are not counted
drafter_step_share     share of the batch's steps in which a draft model ran
task_seconds_mean      of a question, from its first call to its answer
outside_share          share of that time outside of model calls: SQL, its checks, the agents themselves
identical              whether all answers equal those of the system `compared_with`

With an emulated device, seconds are those of the scheduler's clock, so that tokens_per_second and goodput are those of
a GPU; wall_seconds are the client's. Latencies are left out, because clients run on another clock.

device_busy            share of the time with requests in which the device worked
no_requests_share      share of the seconds in which the scheduler had no request, because clients or other processes of
                       the server were busy with theirs
preempted_share        share of the seconds in which other processes kept the scheduler from running: the error that a
                       busy machine causes
device_idle            shares of the time with requests in which the device waited, by what it waited for
host_reads_a_step, eager_ops_a_step, h2d_copies_a_step
                       per decode or verify step, those of prefills included
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from agentspec.evals.clients.client import Reply
from agentspec.evals.run.calls import CellResult
from agentspec.evals.run.cells import Cell, Key
from agentspec.evals.systems import System

Record = dict[str, Any]
Records = Sequence[Mapping[str, Any]]
BASELINES = ("none", "ngram")

_FIGURES = (
    *("tokens_per_second", "goodput", "accept_length", "acceptance_rate", "tokens_per_cpu_second"),
    *("ttft_ms_mean", "ttft_ms_p50", "ttft_ms_p99", "tpot_ms_mean", "tpot_ms_p50", "tpot_ms_p99"),
    *("latency_p50_s", "latency_p99_s", "draft_share", "drafter_step_share", "accuracy", "exact_answers"),
    *("task_seconds_mean", "outside_share"),
)


def record_of(system_name: str, system: System, result: CellResult, context: Mapping[str, Any]) -> Record:
    """The record of a measured cell.

    Args:
        system_name: The name in the command.
        system: The system.
        result: At least one of its calls has an answer.
        context: What the figures depend on: command, seed, versions, hardware and so on.
    """
    good, tokens = result.good, result.tokens
    decoded = tokens - len(good)
    # A plain decode step is a verify step of width one.
    steps = decoded if system.algorithm == "none" else sum(reply.steps for reply in good)
    counts = result.counts
    accepted, drafted = counts.accepted_tokens, counts.drafted_tokens
    if not system.is_ours:
        accepted, drafted = sum(reply.accepted for reply in good), sum(reply.drafted for reply in good)
    return {
        **_head(result.cell, system_name),
        "requests": len(result.replies),
        "completed": len(good),
        "failed": len(result.replies) - len(good),
        "tokens": tokens,
        "prompt_tokens": sum(reply.prompt_tokens for reply in good),
        "cached_prompt_tokens": sum(reply.cached_tokens for reply in good),
        "prompt_tokens_cut": result.prompt_tokens_cut,
        "asked_before": result.cell.asked_before,
        "learnt_units": len(result.cell.learnt),
        "turns": len(result.cell.turns),
        "seconds": round(result.seconds, 3),
        "tokens_per_second": round(tokens / result.seconds, 2),
        "goodput": round(decoded / result.seconds, 2),
        "accept_length": round(decoded / steps, 4) if steps else None,
        "acceptance_rate": round(accepted / drafted, 4) if drafted else None,
        "verify_steps": steps,
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "tokens_per_cpu_second": round(tokens / result.cpu_seconds, 2) if result.cpu_seconds else None,
        **({} if not result.device else _device(result)),
        **_times("ttft_ms", [1e3 * (reply.first - reply.began) for reply in good if reply.first]),
        **_times("tpot_ms", [_tpot_ms(reply) for reply in good if reply.tokens > 1 and reply.first]),
        "latency_p50_s": None if result.device else _percentile([reply.seconds for reply in good], 50),
        "latency_p99_s": None if result.device else _percentile([reply.seconds for reply in good], 99),
        "draft_share": _draft_share(result),
        "drafter_step_share": _drafter_step_share(system, result),
        "accuracy": None if result.accuracy is None else round(result.accuracy, 4),
        "exact_answers": result.exact_answers,
        **_task_times(result),
        "outputs": result.outputs,
        "errors": sorted({reply.error for reply in result.replies if reply.error})[:3],
        **context,
    }


def failed_record(system_name: str, cell: Cell, error: str, context: Mapping[str, Any]) -> Record:
    """The record of a cell that a server did not answer."""
    nothing = {**dict.fromkeys(_FIGURES), **dict.fromkeys(("requests", "completed", "failed"), 0), "outputs": None}
    return {**_head(cell, system_name), **nothing, "error": error, **context}


def compared(records: Iterable[Mapping[str, Any]]) -> list[Record]:
    """The records, extended by the comparison with other records of the same cell: `identical`, the baseline, and
    ratios.

    Answers are compared with those of the system `none`, or of the first system if it is missing. Ratios are of tokens
    a second, between systems of the same repeat.
    """
    records = list(records)
    cells: dict[Key, list[Mapping[str, Any]]] = {}
    for record in records:
        cells.setdefault(key_of(record), []).append(record)
    found = []
    for record in records:
        others = {other["system"]: other for other in cells[key_of(record)] if not is_failed(other)}
        reference = others.get("none") or next(iter(others.values()), None)
        speeds = {name: others[name]["tokens_per_second"] for name in BASELINES if name in others}
        same = None
        if reference is not None and record["outputs"] and reference["outputs"]:
            same = record["outputs"] == reference["outputs"]
        found.append(
            {
                **record,
                "identical": same,
                "compared_with": reference["system"] if reference is not None else None,
                "baseline": speeds,
                **{
                    f"speedup_over_{name}": None
                    if is_failed(record) or not speeds.get(name)
                    else round(record["tokens_per_second"] / speeds[name], 4)
                    for name in BASELINES
                },
            }
        )
    return found


def key_of(record: Mapping[str, Any]) -> Key:
    """The cell of a record."""
    return record["task"], record["pass"], record["concurrency"], record["repeat"]


def is_failed(record: Mapping[str, Any]) -> bool:
    return bool(record.get("error"))


def _head(cell: Cell, system: str) -> Record:
    return {
        "task": cell.task,
        "system": system,
        "pass": cell.pass_name,
        "concurrency": cell.concurrency,
        "repeat": cell.repeat,
    }


def _tpot_ms(reply: Reply) -> float:
    return 1e3 * (reply.ended - reply.first) / (reply.tokens - 1)


def _times(name: str, values: Sequence[float]) -> Record:
    return {
        f"{name}_mean": round(float(np.mean(values)), 3) if values else None,
        f"{name}_p50": _percentile(values, 50),
        f"{name}_p99": _percentile(values, 99),
    }


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return round(float(np.percentile(values, percent)), 3) if values else None


def _device(result: CellResult) -> Record:
    """What an emulated device counted in a cell."""
    device = result.device
    active, steps = device["active_seconds"], device["steps"]
    names = ("host_reads", "eager_ops", "h2d_copies")
    idle = {name.removeprefix("idle "): value for name, value in device.items() if name.startswith("idle ")}
    return {
        "wall_seconds": round(result.wall_seconds, 3),
        "device_steps": int(steps),
        "device_busy": round(device["busy_seconds"] / active, 4) if active else None,
        "device_idle": {name: round(value / active, 4) for name, value in idle.items() if active},
        "no_requests_share": round(max(1.0 - active / result.seconds, 0.0), 4),
        "preempted_share": round(result.preempted_seconds / result.wall_seconds, 4),
        **{f"{name}_a_step": round(device[name] / steps, 2) if steps else None for name in names},
    }


def _draft_share(result: CellResult) -> float | None:
    counts = result.counts
    if not counts.timed_steps or not counts.steps:
        return None
    # Assume that untimed verifications take as long as timed ones.
    verifying = counts.verify_seconds / counts.timed_steps * counts.steps
    return round(counts.drafting_seconds / (counts.drafting_seconds + verifying), 4)


def _task_times(result: CellResult) -> Record:
    """The calls of a question come one after another, so all other time passes outside of the model."""
    total = sum(result.task_seconds)
    if not total:
        return {"task_seconds_mean": None, "outside_share": None}
    calls = sum(reply.seconds for reply in result.replies)
    return {
        "task_seconds_mean": round(total / len(result.task_seconds), 4),
        "outside_share": round(max(1.0 - calls / total, 0.0), 4),
    }


def _drafter_step_share(system: System, result: CellResult) -> float:
    if not system.has_drafter:
        return 0.0
    if not system.is_ours:
        # SGLang's own drafters run in every step.
        return 1.0
    return round(result.counts.drafter_steps / result.counts.steps, 4) if result.counts.steps else 0.0
