"""The short table of a trip."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Records = Sequence[Mapping[str, Any]]


def table(records: Records, phases: Records) -> str:
    """The results of all commands so far. Ratios are relative to plain decoding of the same cells."""
    lines = [*_checks(records), *_replays(records), *_steps(records)]
    for phase in phases:
        said = "complete" if phase["complete"] else f"INCOMPLETE: {str(phase.get('error', ''))[:300]}"
        lines.append(f"phase {phase['name']}: {phase.get('seconds', 0.0)} s, {said}")
    return "\n".join(lines)


def _checks(records: Records) -> list[str]:
    lines = []
    for record in records:
        if record["part"] == "smoke":
            verdict = "failed" if "error" in record or not record.get("met", True) else "passed"
            rest = {k: v for k, v in record.items() if k not in ("part", "check", "met", "error")}
            lines.append(f"smoke {record['check']}: {verdict} {rest or ''} {str(record.get('error', ''))[-300:]}")
        elif record["part"] in ("parity", "sampling"):
            rest = {k: v for k, v in record.items() if k not in ("part", "system", "met", "examples", "backend")}
            lines.append(f"{record['part']} {record['system']}: {'met' if record['met'] else 'MISSED'} {rest}")
    return lines


def _replays(records: Records) -> list[str]:
    found = [r for r in records if r["part"] == "replay"]
    lines = [f"{r['size']} {r['system']} failed: {r['error'][-300:]}" for r in found if "error" in r]
    measured = [r for r in found if "tokens_per_second" in r]
    if not measured:
        return lines
    lines.append("size      trace  at  system  tokens/s  of plain  accept  drafting ms  verify ms  verify share  cells")
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for r in measured:
        cells.setdefault((r["size"], r["trace"], r["clients"], r["system"]), []).append(r)
    for key, some in sorted(cells.items(), key=lambda item: item[0][:3]):
        plain = cells.get((*key[:3], "none"), [])
        paired = [
            r["tokens_per_second"] / p["tokens_per_second"]
            for r in some
            for p in plain
            if r["repetition"] == p["repetition"]
        ]
        lines.append(
            f"{key[0]:9} {key[1]:5} {key[2]:3}  {key[3]:7} {_mean(some, 'tokens_per_second', 8, 0)}"
            f"  {statistics.fmean(paired) if paired else float('nan'):8.2f}  {_mean(some, 'accept_length', 6, 2)}"
            f"  {_mean(some, 'drafting_ms_a_step', 11, 3)}  {_mean(some, 'verify_ms_a_step', 9, 2)}"
            f"  {_mean(some, 'verify_share', 12, 2)}  {len(some):5}"
        )
    notes = dict.fromkeys(r[name] for name in ("note", "head") for r in measured if name in r)
    return [*lines, *(f"  {note}" for note in notes)]


def _steps(records: Records) -> list[str]:
    return [
        f"steps {r['size']}: T = {r['alpha_us']:.4f} us N_context + {r['gamma_us']:.2f} us N_batched + "
        f"{r['delta_ms']:.2f} ms, R2 {r['r2']:.3f}, {r['points']} points"
        for r in records
        if r["part"] == "profile"
    ]


def _mean(records: Records, name: str, width: int, digits: int) -> str:
    values = [r[name] for r in records if r.get(name) is not None]
    return f"{statistics.fmean(values):{width}.{digits}f}" if values else " " * width
