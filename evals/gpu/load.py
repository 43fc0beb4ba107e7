"""Measures clients that wait for their answers before they ask again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agentspec.errors import ServerError
from agentspec.evals.clients.open_loop import Answered, send_closed
from agentspec.evals.gpu.work import RecordedCall
from agentspec.integrations.servers.server import RunningServer


def measure(
    server: RunningServer,
    calls: Sequence[RecordedCall],
    clients: int,
    *,
    is_ours: bool,
    speculates: bool,
    busy: Callable[[float, float], float | None],
) -> dict[str, Any]:
    """The figures of some calls.

    Args:
        server: It is asked nothing else at the same time.
        calls: Not asked before.
        clients: Number of calls at a time.
        is_ours: Whether the server must report agentspec's counters.
        speculates: Whether it must verify drafts.
        busy: The share of an interval of time.monotonic() in which the GPU was busy.

    Raises:
        ServerError: Answers are not the recorded ones, agentspec is not active, or nothing was speculated.
        OSError: The server refused a call or is gone.
    """
    before = _state(server) if is_ours else {}
    began = time.monotonic()
    answers = send_closed(server, calls, clients)
    ended = time.monotonic()
    after = _state(server) if is_ours else {}
    wrong = sum(not _is_as_recorded(call, answer) for call, answer in zip(calls, answers, strict=True))
    if wrong:
        raise ServerError(
            f"all answers must be the recorded ones, but {wrong} of {len(answers)} are not; is the server replaying?"
        )
    seconds = max(answer.answered for answer in answers)
    tokens = sum(len(answer.output) for answer in answers)
    steps = sum(answer.verify_steps for answer in answers)
    if speculates and (not steps or (is_ours and not after["counters"]["drafted_tokens"])):
        raise ServerError(f"the server at {server.url} must speculate, but drafted nothing; see its log")
    latencies = np.array([answer.seconds for answer in answers])
    return {
        "requests": len(answers),
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 1),
        # The first token of an answer comes from the prefill.
        "accept_length": round((tokens - len(answers)) / steps, 3) if steps else 1.0,
        "latency_p50": round(float(np.percentile(latencies, 50)), 4),
        "latency_p99": round(float(np.percentile(latencies, 99)), 4),
        "gpu_busy": busy(began, ended),
        **(_between(before, after, seconds) if is_ours else {}),
    }


def _is_as_recorded(call: RecordedCall, answer: Answered) -> bool:
    """The token that ends the turn may follow the recorded ones."""
    output, expected = answer.output.tolist(), call.answer.tolist()
    return output[: len(expected)] == expected and len(output) <= len(expected) + 1


def _state(server: RunningServer) -> dict[str, Any]:
    state = server.agentspec_state()
    if state is None:
        raise ServerError(f"agentspec must be active in the server at {server.url}, but is not; see its log")
    return state


def _between(before: Mapping[str, Any], after: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What agentspec did between two states."""
    counts = {
        name: after["counters"][name] - before["counters"].get(name, 0)
        for name in (
            "steps",
            "drafting_seconds",
            "drafted_tokens",
            "accepted_tokens",
            "verified_tokens",
            "draft_errors",
        )
    }
    ours, theirs = after["control"], before["control"]
    measured = ours["measured_steps"] - theirs["measured_steps"]
    verifying = ours["observed_seconds"] - theirs["observed_seconds"]
    widths = {
        width: number - theirs["widths"].get(width, 0)
        for width, number in ours["widths"].items()
        if number > theirs["widths"].get(width, 0)
    }
    steps = max(counts["steps"], 1)
    return {
        "steps": counts["steps"],
        "drafted_tokens": counts["drafted_tokens"],
        "accepted_tokens": counts["accepted_tokens"],
        "verified_tokens": counts["verified_tokens"],
        "draft_errors": counts["draft_errors"],
        "drafting_ms_a_step": round(1e3 * counts["drafting_seconds"] / steps, 4),
        "verify_ms_a_step": round(1e3 * verifying / measured, 4) if measured else None,
        # Share of the wall time, prefills included, that the device spent on verification.
        "verify_share": round(verifying / measured * counts["steps"] / seconds, 3) if measured else None,
        "widths": widths,
    }
