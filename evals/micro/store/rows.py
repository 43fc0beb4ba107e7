"""The figures of `agentspec bench store`, and their targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_TARGETS = {
    "warm_start_": (">=", 0.95),
    "follower_lag_p99_s": ("<=", 1.0),
    "lost_outputs": ("<=", 0.0),
    "ready_10m_sqlite_s": ("<=", 3.0),
    "ready_10m_redis_s": ("<=", 10.0),
}
"""Prefix of a case's name -> target of its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure."""

    case: str
    value: float
    unit: str
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further values that help to read it."""

    @property
    def target(self) -> tuple[str, float] | None:
        """Comparison and bound; None without a target."""
        return next((target for name, target in _TARGETS.items() if self.case.startswith(name)), None)

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        if self.target is None:
            return None
        comparison, bound = self.target
        return self.value >= bound if comparison == ">=" else self.value <= bound

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = {"case": self.case, "value": round(self.value, 4), "unit": self.unit}
        if self.target is not None:
            record |= {"target": f"{self.target[0]} {self.target[1]:g}", "met": self.is_met}
        return {**record, **self.more}
