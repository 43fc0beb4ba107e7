"""The figures of `agentspec bench store`, and their targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MOST = {"follower_lag_p99_s": 1.0, "lost_outputs": 0.0, "ready_10m_sqlite_s": 3.0, "ready_10m_redis_s": 10.0}
"""Prefix of a case's name -> its value should be at most this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure."""

    case: str
    value: float
    unit: str
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further values that help to read it."""

    @property
    def target(self) -> float | None:
        """What the value should be at most; None without a target."""
        return next((most for name, most in _MOST.items() if self.case.startswith(name)), None)

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        return None if self.target is None else self.value <= self.target

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = {"case": self.case, "value": round(self.value, 4), "unit": self.unit}
        if self.target is not None:
            record |= {"target": f"<= {self.target:g}", "met": self.is_met}
        return {**record, **self.more}
