"""Measures of each set of outputs. A set is all outputs, or those of a role, a tenant, a day or a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.calls import Labels, shown
from agentspec.analysis.logs.sample import KeptOutput, SetCount
from agentspec.analysis.measures.entropy import output_entropy
from agentspec.analysis.measures.repetition import OutputRuns, repeated_tokens, shares
from agentspec.analysis.measures.replays import Lengths, Sampled

ENTROPY_OUTPUTS = 1000
"""The number of outputs for an entropy, spread evenly over the sample. It is fixed because entropy depends on it."""
_MAX_SETS = 12
_LEAST_OUTPUTS = 10
_KINDS: dict[str, Callable[[Labels, str], str]] = {
    "role": lambda labels, file: labels.role,
    "tenant": lambda labels, file: labels.tenant,
    "day": lambda labels, file: labels.day,
    "file": lambda labels, file: shown(file),
}


def spread(outputs: Sequence[KeptOutput], count: int = ENTROPY_OUTPUTS) -> list[KeptOutput]:
    """At most `count` of the outputs, at even distances."""
    if len(outputs) <= count:
        return list(outputs)
    return [outputs[int(i)] for i in np.linspace(0, len(outputs) - 1, count)]


def entropy_of(outputs: Sequence[KeptOutput]) -> dict[str, Any] | None:
    """The entropy's mean, low, high, outputs and tokens; None where no context is in two outputs."""
    chosen = spread(outputs)
    found = output_entropy([output.tokens for output in chosen])
    interval = found.interval([output.session for output in chosen])
    if interval is None:
        return None
    return {**interval, "outputs": len(chosen), "tokens": sum(len(output.tokens) for output in chosen)}


def set_rows(
    counts: dict[tuple[str, str], SetCount],
    kept: Sequence[KeptOutput],
    sampled: Sampled,
    cold: Lengths,
    warm: Lengths,
) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each set, all outputs first, and notes on what is left out."""
    notes: list[str] = []
    runs = OutputRuns([output.tokens for output in kept])
    places = np.array([repeated_tokens(call.output, call.prompt, runs) for call in sampled.measured], np.int64).reshape(
        -1, 4
    )
    rows = [_row("all", "all", counts["all", "all"], kept, np.ones(len(places), np.bool_), sampled, places, cold, warm)]
    for kind, name_of in _KINDS.items():
        names = [name for found, name in counts if found == kind]
        # Files are not meaningful sets where a folder has one file for each call.
        if len(names) < (1 if kind == "role" else 2) or (kind == "file" and len(names) > _MAX_SETS):
            continue
        names.sort(key=lambda name: (-counts[kind, name].outputs, name))
        if len(names) > _MAX_SETS:
            notes.append(f"Of {len(names)} sets by {kind}, only the {_MAX_SETS} with the most outputs are shown.")
        for name in sorted(names[:_MAX_SETS]) if kind == "day" else names[:_MAX_SETS]:
            chosen = [output for output in kept if name_of(output.labels, output.file) == name]
            mask = np.array(
                [name_of(labels, file) == name for labels, file in zip(sampled.labels, sampled.files, strict=True)],
                np.bool_,
            )
            rows.append(_row(name, kind, counts[kind, name], chosen, mask, sampled, places, cold, warm))
    return rows, notes


def _row(
    name: str,
    kind: str,
    count: SetCount,
    kept: Sequence[KeptOutput],
    mask: NDArray[np.bool_],
    sampled: Sampled,
    places: NDArray[np.int64],
    cold: Lengths,
    warm: Lengths,
) -> dict[str, Any]:
    entropy = entropy_of(kept) if len(kept) >= _LEAST_OUTPUTS or kind == "all" else None
    lengths = None
    if mask.sum() >= (_LEAST_OUTPUTS if kind != "all" else 1):
        lengths = {
            label: length.interval() if (length := part.chosen(mask[part.calls]).ratio(sampled)) else None
            for label, part in (("cold", cold), ("warm", warm))
        }
        lengths = lengths if any(lengths.values()) else None
    return {
        "name": name,
        "by": kind,
        "outputs": count.outputs,
        "output_tokens": count.tokens,
        "sessions": len(count.sessions),
        "entropy": {key: entropy[key] for key in ("mean", "low", "high")} if entropy else None,
        "repeated": shares(places[mask].sum(axis=0)) if mask.any() else None,
        "accept_length": lengths,
    }
