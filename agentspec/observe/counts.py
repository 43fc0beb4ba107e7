"""What was counted between two readings of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The counters of a block, as (key, keys of its counts); () stands for all counts below the key.
_COUNTED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("counters", ()),
    ("rows_without_draft", ()),
    ("requests", ()),
    ("carriage_returns", ()),
    (
        "control",
        (
            *("plans", "widths", "measured_steps", "predicted_seconds", "observed_seconds"),
            *("predicted_tokens", "observed_tokens"),
        ),
    ),
    ("breaker", ("openings",)),
    ("engine", ("evicted_outputs", "spared_tokens")),
    (
        "store",
        (
            *("dropped_outputs", "delivered_outputs", "received_outputs", "loaded_outputs", "skipped_records"),
            *("refused_outputs", "deletions", "errors", "resets"),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Change:
    """The counts of one rank over a period of time."""

    seconds: float
    counts: dict[str, Any]
    """The counters, with the structure that they have in the block."""
    since_start: bool
    """Whether the counts cover all of the time since the server started."""
    restarted: bool
    """Whether the server restarted between the two readings. The counts are then those of the new server."""


def change(block: Mapping[str, Any], earlier: Mapping[str, Any] | None = None, seconds: float = 0.0) -> Change:
    """Returns the counts since an earlier reading, or since the server started if there is none. `block`: the block
    `agentspec` of a rank. `earlier`: an earlier block of the same rank."""
    counts = _counts(block)
    uptime = float(block.get("uptime_seconds") or 0.0)
    if earlier is None:
        return Change(uptime, counts, since_start=True, restarted=False)
    before = _counts(earlier)
    if block.get("started") != earlier.get("started") or _fell(before, counts):
        return Change(uptime, counts, since_start=True, restarted=True)
    # The server's own uptime, if reported, is not distorted by slow answers.
    told = uptime - float(earlier.get("uptime_seconds") or 0.0)
    return Change(told if told > 0 else seconds, _minus(counts, before), since_start=False, restarted=False)


def _counts(block: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, names in _COUNTED:
        part = block.get(key)
        if isinstance(part, Mapping):
            found[key] = {name: part[name] for name in names or part if name in part}
    return found


def _fell(before: Any, now: Any) -> bool:
    if isinstance(before, Mapping):
        return isinstance(now, Mapping) and any(_fell(value, now.get(name, 0)) for name, value in before.items())
    return isinstance(before, int | float) and isinstance(now, int | float) and now < before


def _minus(now: Any, before: Any) -> Any:
    if isinstance(now, Mapping):
        earlier = before if isinstance(before, Mapping) else {}
        return {name: _minus(value, earlier.get(name, 0)) for name, value in now.items()}
    if isinstance(now, int | float) and isinstance(before, int | float):
        return now - before
    return now
