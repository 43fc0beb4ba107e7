"""What the controller decided and what came of it, for Prometheus."""

from __future__ import annotations

from typing import get_args

from agentspec.scheduling import Reason, StepPlan

_GAUGES = {
    "step_width": "Tokens verified a row in the last step, padding included, the mean where rows differ; 1 is plain decoding",
    "step_budget": "Drafted tokens verified in the last step, over all rows",
    "step_predicted_seconds": "Predicted for the last step's verification",
    "step_observed_seconds": "Measured of the last step's verification; 0 where it was not",
    "step_predicted_tokens": "Accepted and bonus tokens expected of the last step, over all rows",
    "step_observed_tokens": "Accepted and bonus tokens of the last step, over all rows",
}

# Of gauges only the last step is seen; what was predicted too high or too low shows in sums.
_COUNTERS = {
    "predicted_verify_seconds": "Predicted for verifications, of those that were measured",
    "observed_verify_seconds": "Measured of verifications",
    "predicted_tokens": "Accepted and bonus tokens expected of steps",
    "observed_tokens": "Accepted and bonus tokens of steps",
}


class ControlMetrics:
    """Mirrors plans as `agentspec:step_*`, `agentspec:step_plans_total` and sums of what was predicted and observed. For
    one thread; see StoreMetrics."""

    def __init__(self, labels: dict[str, str]) -> None:
        from prometheus_client import Counter, Gauge

        names = list(labels)
        self._gauges = {
            name: Gauge(f"agentspec:{name}", text, names, multiprocess_mode="mostrecent").labels(**labels)
            for name, text in _GAUGES.items()
        }
        self._counters = {
            name: Counter(f"agentspec:{name}", text, names).labels(**labels) for name, text in _COUNTERS.items()
        }
        plans = Counter("agentspec:step_plans", "Steps by why they were as wide as they were", [*names, "reason"])
        # A reason is visible before its first step.
        self._plans = {reason: plans.labels(**labels, reason=reason) for reason in get_args(Reason)}

    def observe(self, plan: StepPlan, seconds: float, num_tokens: int) -> None:
        """A step that was verified: its plan, its seconds, and the tokens it brought."""
        values = (
            float(plan.width),
            float(plan.num_nodes.sum()),
            plan.seconds,
            seconds,
            plan.expected_tokens,
            float(num_tokens),
        )
        for gauge, value in zip(self._gauges.values(), values, strict=True):
            gauge.set(value)
        self._plans[plan.reason].inc()
        if seconds > 0.0:
            self._counters["predicted_verify_seconds"].inc(plan.seconds)
            self._counters["observed_verify_seconds"].inc(seconds)
        self._counters["predicted_tokens"].inc(plan.expected_tokens)
        self._counters["observed_tokens"].inc(num_tokens)
