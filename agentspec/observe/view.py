"""A rank's figures as text: sections of a few lines each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentspec.observe.summary import Summary

Section = tuple[str, list[tuple[str, str]]]
"""A title, and pairs of what a line says and its figures."""

_UNITS = ("B", "kB", "MB", "GB", "TB")
_LABEL = 16
_MOST_SHOWN = 6


def sections(of: Summary) -> list[Section]:
    """The sections that a terminal shows for a rank, in order."""
    shown = [("Speed", _speed(of)), ("Drafts", _drafts(of)), ("Controller", _controller(of))]
    if of.drafter is not None:
        shown.append(("Draft model", _drafter(of.drafter)))
    return [*shown, ("Memory", _memory(of)), ("Store", _store(of.store)), ("Health", _health(of))]


def title(rank: int, num_ranks: int, of: Summary) -> str:
    """The line above a rank's sections."""
    which = f"rank {rank} of {num_ranks}, " if num_ranks > 1 else ""
    when = "since the start" if of.since_start else f"in the last {of.seconds:.1f} s"
    restarted = "; RESTARTED since the last reading" if of.restarted else ""
    up = "" if of.uptime_seconds is None else f", up {duration(of.uptime_seconds)}"
    return f"{which}agentspec {of.version}{up}: {when}{restarted}"


def plain(rank: int, num_ranks: int, of: Summary) -> str:
    """All sections as lines of text."""
    lines = [title(rank, num_ranks, of)]
    for name, pairs in sections(of):
        lines.append(name)
        lines += [f"  {label:<{_LABEL}} {value}" for label, value in pairs]
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Formats a duration for people, in its two largest units."""
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"


def size(count: float) -> str:
    """Formats bytes for people: three digits and a unit in steps of 1000."""
    unit = 0
    while count >= 999.5 and unit < len(_UNITS) - 1:
        count /= 1000
        unit += 1
    return f"{count:.3g} {_UNITS[unit]}"


def _speed(of: Summary) -> list[tuple[str, str]]:
    return [
        ("goodput", f"{_number(of.goodput, 1)} tokens/s"),
        ("accept length", f"{_number(of.accept_length)} tokens a verification"),
        ("steps", f"{of.steps}, {_number(of.rows_a_step)} rows each"),
        ("drafting", f"{_number(of.drafting_ms, 3)} ms a step"),
    ]


def _drafts(of: Summary) -> list[tuple[str, str]]:
    total = sum(figures.rows for figures in of.sources.values())
    lines = [
        (source, f"{_share(figures.rows, total)} of rows, {_accepted(figures)}")
        for source, figures in of.sources.items()
        if source != "none"
    ]
    without = sum(of.rows_without_draft.values())
    if without:
        lines.append(("without draft", f"{_share(without, total)} of rows: {_most(of.rows_without_draft)}"))
    return lines or [("none yet", "no row was verified")]


def _accepted(of: Summary) -> str:
    tokens = f"{of.accepted} of {of.drafted} tokens accepted{_percentage(of.acceptance_rate)}"
    return f"accept length {of.accept_length:.2f}, {tokens}"


def _controller(of: Summary) -> list[tuple[str, str]]:
    lines = [("kind", of.controller or "-"), ("width", f"{_number(of.width)} tokens a row, mean")]
    if of.last_step:
        step = of.last_step
        lines.append(("last step", f"width {step['width']}, budget {step['budget']} drafted tokens, {step['reason']}"))
    if of.plan:
        lines.append(("next step", _plan(of.plan)))
    if of.widths:
        lines.append(("widths", _most(of.widths)))
    if of.plans:
        lines.append(("reasons", _most(of.plans)))
    if of.observed_ms is not None:
        lines.append(
            ("verification", f"{_number(of.predicted_ms)} ms predicted, {_number(of.observed_ms)} ms observed")
        )
    if of.observed_tokens is not None:
        tokens = f"{_number(of.predicted_tokens)} predicted, {_number(of.observed_tokens)} observed"
        lines.append(("tokens a step", tokens))
    return lines


def _plan(plan: Mapping[str, Any]) -> str:
    """What is planned, and what it was weighed against."""
    alone = f"suffix drafts alone {_number(plan.get('tokens'))} tokens in {_number(plan.get('ms'))} ms"
    if not plan.get("ms_with_model"):
        return f"width {plan.get('width')}, {plan.get('reason')}: {alone}"
    with_model = f"with the draft model {_number(plan['tokens_with_model'])} in {_number(plan['ms_with_model'])} ms"
    which = "with" if plan.get("passes") else "without"
    return f"{which} the draft model, width {plan.get('width')}, {plan.get('reason')}: {alone}, {with_model}"


def _drafter(of: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("kind", str(of.get("base", "-"))),
        ("expects", f"{_number(of.get('expected_accepted'))} tokens a draft"),
        ("runs in", f"{_percent(of.get('share_of_steps'))} of steps"),
        ("paused", f"{'yes' if of.get('paused') else 'no'}; in {_percent(of.get('paused_share'))} of steps"),
    ]


def _memory(of: Summary) -> list[tuple[str, str]]:
    memory = ", ".join(f"{kind} {size(count)}" for kind, count in of.memory_bytes.items())
    return [
        ("outputs", f"{of.outputs} of {of.output_tokens} tokens in {of.namespaces} namespaces"),
        ("evicted", str(of.evicted_outputs)),
        ("indexes", memory),
        ("open requests", str(of.open_requests)),
    ]


def _store(of: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if of is None:
        return [("none", "nothing outlives this server")]
    state = "connected" if of.get("connected") else "NOT CONNECTED"
    if not of.get("ready", True):
        state += ", still loading"
    lag = of.get("lag_seconds")
    shown = f"{lag['p50']:.3f} s median, {lag['p99']:.3f} s 99th percentile" if lag else "nothing received yet"
    outputs = ", ".join(
        f"{of[name]} {name.removesuffix('_outputs')}"
        for name in ("delivered_outputs", "received_outputs", "queued_outputs", "dropped_outputs")
        if name in of
    )
    lines = [("state", f"{state}: {of.get('url', '-')}"), ("lag", shown), ("outputs", outputs)]
    error = of.get("last_error")
    if error:
        lines.append(("last error", str(error.get("message", ""))))
    return lines


def _health(of: Summary) -> list[tuple[str, str]]:
    breaker = "OPEN: drafting pauses" if of.breaker_open else "closed"
    return [
        ("errors", f"{of.draft_errors} of drafting, {of.control_errors} of the controller"),
        ("breaker", f"{breaker}; opened {of.breaker_openings} times"),
    ]


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _percentage(share: float | None) -> str:
    return "" if share is None else f" ({share:.0%})"


def _share(part: int, total: int) -> str:
    return _percent(part / total if total else None)


def _most(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} {n}" for name, n in ordered[:_MOST_SHOWN])
    rest = sum(n for _, n in ordered[_MOST_SHOWN:])
    return f"{shown}, others {rest}" if rest else shown
