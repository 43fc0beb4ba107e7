"""The short table of a trip."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from agentspec.evals.tables import aligned

Records = Sequence[Mapping[str, Any]]
_FIGURES = (
    ("accept", "accept_length", 2), ("drafting ms", "drafting_ms_a_step", 3), ("verify ms", "verify_ms_a_step", 2),
    ("verify share", "verify_share", 2),
)  # fmt: skip


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
    rows = [["size", "trace", "system", "at", "tokens/s", "of plain", *(title for title, _, _ in _FIGURES), "cells"]]
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
        speeds = _mean(some, "tokens_per_second", 0), f"{statistics.fmean(paired) if paired else float('nan'):.2f}"
        figures = (_mean(some, name, digits) for _, name, digits in _FIGURES)
        rows.append([key[0], key[1], key[3], str(key[2]), *speeds, *figures, str(len(some))])
    notes = dict.fromkeys(r[name] for name in ("note", "head") for r in measured if name in r)
    return [*lines, *aligned(rows, words=3), *(f"  {note}" for note in notes)]


def _steps(records: Records) -> list[str]:
    return [
        f"steps {r['size']}: T = {r['alpha_us']:.4f} us N_context + {r['gamma_us']:.2f} us N_batched + "
        f"{r['delta_ms']:.2f} ms, R2 {r['r2']:.3f}, {r['points']} points"
        for r in records
        if r["part"] == "profile"
    ]


def _mean(records: Records, name: str, digits: int) -> str:
    values = [r[name] for r in records if r.get(name) is not None]
    return f"{statistics.fmean(values):.{digits}f}" if values else ""
