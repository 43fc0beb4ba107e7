"""What the controller decided and what came of it, for Prometheus."""

from __future__ import annotations

from agentspec.control import StepPlan

_GAUGES = {
    "step_width": "Tokens verified a row in the last step, padding included; 1 is plain decoding",
    "step_budget": "Drafted tokens verified in the last step, over all rows",
    "step_predicted_seconds": "Predicted for the last step's verification",
    "step_observed_seconds": "Measured of the last step's verification; 0 where it was not",
    "step_predicted_tokens": "Accepted and bonus tokens expected of the last step, over all rows",
    "step_observed_tokens": "Accepted and bonus tokens of the last step, over all rows",
}


class ControlMetrics:
    """Mirrors plans as `agentspec:step_*` and `agentspec:step_plans_total`. For one thread; see StoreMetrics."""

    def __init__(self, labels: dict[str, str]) -> None:
        from prometheus_client import Counter, Gauge

        self._labels = labels
        names = list(labels)
        self._gauges = {
            name: Gauge(f"agentspec:{name}", text, names, multiprocess_mode="mostrecent").labels(**labels)
            for name, text in _GAUGES.items()
        }
        self._plans = Counter("agentspec:step_plans", "Steps by why they were as wide as they were", [*names, "reason"])

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
        self._plans.labels(**self._labels, reason=plan.reason).inc()
