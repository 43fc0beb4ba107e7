"""The store's health, for Prometheus."""

from __future__ import annotations

from typing import Any

_GAUGES = {
    "store_connected": "1 while the store answers, else 0",
    "store_lag_seconds": "From an output's end on another replica to its arrival here, 99th percentile of the latest",
    "store_queued_outputs": "Finished outputs that wait for the store",
    "store_bytes": "What the store holds of this model, as last counted by the replica that keeps it tidy",
    "store_namespaces": "Namespaces in the store, counted likewise",
}
_COUNTERS = {
    "store_dropped_outputs": "Finished outputs dropped because the queue was full",
    "store_errors": "Failures of the store; each cost drafts only",
    "store_delivered_outputs": "Finished outputs written to the store",
    "store_received_outputs": "Outputs of other replicas received",
    "store_skipped_records": "Records in the store that could not be used",
    "store_deletions": "Deletions carried out",
}


class StoreMetrics:
    """Mirrors `Sharing.health()` as `agentspec:store_*`. For one thread.

    Made in the scheduler process after SGLang has set up its multiprocess directory: importing prometheus_client any
    earlier would fix the value classes to a single process.
    """

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
        self._counted = dict.fromkeys(_COUNTERS, 0)

    def __call__(self, health: dict[str, Any]) -> None:
        lag = health["lag_seconds"]
        values = {
            "store_connected": int(health["connected"]),
            "store_lag_seconds": lag["p99"] if lag else 0.0,
            "store_queued_outputs": health["queued_outputs"],
            "store_bytes": health["stored_bytes"],
            "store_namespaces": health["stored_namespaces"],
        }
        for name, value in values.items():
            self._gauges[name].set(value)
        for name, counter in self._counters.items():
            count = int(health[name.removeprefix("store_")])
            counter.inc(count - self._counted[name])
            self._counted[name] = count
