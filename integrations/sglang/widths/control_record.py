"""What the controller promised and what came of it, since the server started."""

from __future__ import annotations

from collections import Counter
from typing import Any

from agentspec.scheduling import StepPlan


class ControlRecord:
    """Sums over verified steps, for `/server_info`. Owned by one thread."""

    def __init__(self) -> None:
        self._plans: Counter[str] = Counter()
        self._widths: Counter[int] = Counter()
        self._sums = dict.fromkeys(("predicted_seconds", "observed_seconds"), 0.0)
        self._tokens = {"predicted_tokens": 0.0, "observed_tokens": 0}
        self._num_measured = 0

    def observe(self, plan: StepPlan, seconds: float, num_tokens: int) -> None:
        """A step that was verified: its plan, its seconds, 0 where they were not measured, and the tokens it brought."""
        self._plans[plan.reason] += 1
        self._widths[plan.width] += 1
        self._tokens["predicted_tokens"] += plan.expected_tokens
        self._tokens["observed_tokens"] += num_tokens
        if seconds > 0.0:
            self._num_measured += 1
            self._sums["predicted_seconds"] += plan.seconds
            self._sums["observed_seconds"] += seconds

    def snapshot(self) -> dict[str, Any]:
        """Steps by reason and by width, as strings; seconds of the steps that were measured; tokens of all."""
        return {
            "plans": dict(self._plans),
            "widths": {str(width): n for width, n in sorted(self._widths.items())},
            "measured_steps": self._num_measured,
            **self._sums,
            **self._tokens,
        }
