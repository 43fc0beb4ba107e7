"""The short table of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Records = Sequence[Mapping[str, Any]]


def table(records: Records, errors: Mapping[str, str], left_out: Sequence[str]) -> str:
    """The results of all tasks so far, in a few lines. Ratios are relative to plain decoding of the same calls."""
    return "\n".join(
        line
        for lines in (_checks(records), _profiles(records), _replays(records), _predictions(records))
        if lines
        for line in (*lines, "")
    ) + "\n".join(
        [*(f"failed: {task}: {error}" for task, error in errors.items()), *(f"left out: {task}" for task in left_out)]
    )


def _checks(records: Records) -> list[str]:
    lines = []
    for record in _of(records, "parity"):
        said = record.get("error") or (
            f"{record['answers'] - record['differing']}/{record['answers']} answers identical, {record['tokens']} tokens"
            f"{_drafted(record)}"
        )
        lines.append(f"parity {record['dtype']} {record['system']}: {said}")
    for record in _of(records, "sampling"):
        said = record.get("error") or (
            f"least p {min(record['p_values'], default=float('nan')):.3g} of {len(record['p_values'])} tests, "
            f"{'met' if record['met'] else 'MISSED'}{_drafted(record)}"
        )
        lines.append(f"sampling at {record.get('temperature', 0)} {record['system']}: {said}")
    return lines


def _drafted(record: Mapping[str, Any]) -> str:
    return (
        f", {record['accepted_tokens']}/{record['drafted_tokens']} drafted accepted"
        if "drafted_tokens" in record
        else ""
    )


def _profiles(records: Records) -> list[str]:
    return [
        f"steps {r['size']} {r['backend']}: T = {r['alpha_us']:.4f} us N_context + {r['gamma_us']:.2f} us N_batched + "
        f"{r['delta_ms']:.2f} ms, R2 {r['r2']:.3f}, {r['points']} points"
        for r in _of(records, "profile")
    ]


def _replays(records: Records) -> list[str]:
    found = _of(records, "replay")
    if not found:
        return []
    lines = ["size      backend    trace  at  system  tokens/s  of plain  accept  drafting ms  verify ms  GPU busy"]
    plain = {_key(r): r["tokens_per_second"] for r in found if r["system"] == "none" and "tokens_per_second" in r}
    for r in found:
        first = f"{r['size']:9} {r['backend']:10} {r.get('trace', ''):6} {r.get('concurrency', ''):>2}  {r['system']:7}"
        if "tokens_per_second" not in r:
            lines.append(f"{first} failed: {r['error'].splitlines()[0][:120]}")
            continue
        base = plain.get(_key(r))
        lines.append(
            f"{first} {r['tokens_per_second']:8.0f}  {_number(base and r['tokens_per_second'] / base, 8, 2)}"
            f"  {r['accept_length']:6.2f}  {_number(r.get('drafting_ms_a_step'), 11, 3)}"
            f"  {_number(r.get('verify_ms_a_step'), 9, 2)}  {_number(r.get('gpu_busy'), 8, 2)}"
            + (f"  {r['draft_errors']} DRAFTS FAILED" if r.get("draft_errors") else "")
        )
    notes = dict.fromkeys(r[name] for name in ("note", "head") for r in found if name in r)
    return [*lines, *(f"  {note}" for note in notes)]


def _predictions(records: Records) -> list[str]:
    return [
        f"predicted {r['size']} {r['backend']} {r['trace']} at {r['concurrency']} {r['system']}: "
        f"{r['predicted_tokens_per_second']:.0f} tokens/s, measured {r['measured_tokens_per_second']:.0f}, "
        f"{r['error_of_prediction']:+.1%}"
        for r in _of(records, "predict")
    ]


def _of(records: Records, part: str) -> list[Mapping[str, Any]]:
    return [record for record in records if record.get("part") == part]


def _key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in ("size", "backend", "trace", "concurrency"))


def _number(value: float | None, width: int, digits: int) -> str:
    return " " * width if value is None else f"{value:{width}.{digits}f}"
