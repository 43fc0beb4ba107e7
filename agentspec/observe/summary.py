"""The figures of a rank that people look at first."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from agentspec.observe.counts import Change

_SOURCES = ("request", "global", "corpus", "model", "none")


class Summary(SimpleNamespace):
    """Figures by their names. None: not reported, or nothing was counted."""


def summarise(block: Mapping[str, Any], changed: Change) -> Summary:
    """A rank's activity over a period, by its counts, and its state, by its block `agentspec`."""
    counts = changed.counts
    counters: Mapping[str, Any] = counts.get("counters", {})
    control: Mapping[str, Any] = counts.get("control", {})
    state: Mapping[str, Any] = block.get("control") or {}
    engine: Mapping[str, Any] = block.get("engine") or {}
    breaker: Mapping[str, Any] = block.get("breaker") or {}
    steps, rows = int(counters.get("steps", 0)), int(counters.get("verify_steps", 0))
    accepted = int(counters.get("accepted_tokens", 0))
    planned = sum(control.get("plans", {}).values())
    measured = int(control.get("measured_steps", 0))
    return Summary(
        seconds=changed.seconds,
        since_start=changed.since_start,
        restarted=changed.restarted,
        version=str(block.get("version", "")),
        uptime_seconds=block.get("uptime_seconds"),
        # Accepted and bonus tokens a second.
        goodput=_ratio(accepted + rows, changed.seconds),
        steps=steps,
        rows_a_step=_ratio(rows, steps),
        accept_length=_ratio(accepted + rows, rows),
        sources=_by_source(counters),
        # Verified tokens a row, mean.
        width=_ratio(counters.get("verified_tokens", 0), rows),
        widths=_counted(control.get("widths", {})),
        last_step=dict(state.get("last_step") or {}),
        # What the latest step in stream order recommends, with its numbers; empty if steps wait for drafts.
        plan=dict((block.get("stream_order") or {}).get("plan") or {}),
        # On the step, a draft model's own time included.
        drafting_ms=_ratio(1e3 * counters.get("drafting_seconds", 0.0), steps),
        drafter=_drafter(block.get("drafter"), counters, steps),
        controller=str(state.get("controller", "")),
        plans=_counted(control.get("plans", {})),
        # Of verifications that were measured.
        predicted_ms=_ratio(1e3 * control.get("predicted_seconds", 0.0), measured),
        observed_ms=_ratio(1e3 * control.get("observed_seconds", 0.0), measured),
        # Of a step.
        predicted_tokens=_ratio(control.get("predicted_tokens", 0.0), planned),
        observed_tokens=_ratio(control.get("observed_tokens", 0), planned),
        rows_without_draft=_counted(counts.get("rows_without_draft", {})),
        open_requests=int(engine.get("open_requests", 0)),
        outputs=int(engine.get("outputs", 0)),
        output_tokens=int(engine.get("output_tokens", 0)),
        namespaces=int(engine.get("namespaces", 0)),
        memory_bytes={
            "requests": int(engine.get("request_bytes", 0)),
            "conversations": int(engine.get("conversation_bytes", 0)),
            "outputs": int(engine.get("global_bytes", 0)),
        },
        evicted_outputs=int(engine.get("evicted_outputs", 0)),
        draft_errors=int(counters.get("draft_errors", 0)),
        control_errors=int(counters.get("control_errors", 0)),
        breaker_open=bool(breaker.get("open", False)),
        breaker_openings=int(breaker.get("openings", 0)),
        store=dict(block["store"]) if isinstance(block.get("store"), Mapping) else None,
    )


def _ratio(amount: float, of: float) -> float | None:
    return amount / of if of > 0 else None


def _counted(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: n for name, n in counts.items() if n}


def _by_source(counters: Mapping[str, Any]) -> dict[str, Summary]:
    """The rows by the source of their draft's most likely token, of sources that had rows."""
    split = counters.get("by_source", {})
    found = {}
    for source in _SOURCES:
        rows, drafted, accepted = (
            int(split.get(name, {}).get(source, 0)) for name in ("verify_steps", "drafted_tokens", "accepted_tokens")
        )
        if rows > 0:
            found[source] = Summary(
                rows=rows,
                drafted=drafted,
                accepted=accepted,
                accept_length=(accepted + rows) / rows,
                acceptance_rate=_ratio(accepted, drafted),
            )
    return found


def _drafter(block: Any, counters: Mapping[str, Any], steps: int) -> dict[str, Any] | None:
    if not isinstance(block, Mapping):
        return None
    return {
        **block,
        "share_of_steps": _ratio(counters.get("drafter_steps", 0), steps),
        "paused_share": _ratio(counters.get("drafter_paused_steps", 0), steps),
    }
