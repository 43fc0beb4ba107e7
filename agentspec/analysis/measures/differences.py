"""Tenants, days, roles or files that behave differently: their intervals do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_LEAST_RATIO = 1.25
_MEASURES = (("accept_length", "accept length", "tokens per step"), ("entropy", "entropy", "bits per token"))


def differences(sets: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The differences between the lowest and the highest set of each kind, for each measure.

    Args:
        sets: The sets of the facts.
    """
    found = []
    for kind in dict.fromkeys(entry["by"] for entry in sets if entry["by"] != "all"):
        for measure, words, unit in _MEASURES:
            known = [
                (value, entry["name"])
                for entry in sets
                if entry["by"] == kind and (value := _value(entry, measure)) is not None
            ]
            if len(known) < 2:
                continue
            low, low_name = min(known, key=lambda item: (item[0]["mean"], item[1]))
            high, high_name = max(known, key=lambda item: (item[0]["mean"], item[1]))
            if low["high"] >= high["low"] or high["mean"] < _LEAST_RATIO * max(low["mean"], 1e-9):
                continue
            found.append(
                {
                    "by": kind,
                    "low_set": low_name,
                    "high_set": high_name,
                    "what": measure,
                    "low": low["mean"],
                    "high": high["mean"],
                    "text": f"By {kind}, the {words} ranges from {low['mean']:.2f} {unit} ({low_name}) to "
                    f"{high['mean']:.2f} ({high_name}). Their intervals do not overlap.",
                }
            )
    return found


def _value(entry: dict[str, Any], measure: str) -> dict[str, float] | None:
    if measure == "entropy":
        value: dict[str, float] | None = entry["entropy"]
        return value
    lengths = entry["accept_length"] or {}
    return lengths.get("warm") or lengths.get("cold")
