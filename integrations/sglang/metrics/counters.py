"""What the worker counts, for `/server_info` and for Prometheus."""

from __future__ import annotations

from typing import Any

# The values of the label `source`: where the likeliest token of a row's draft came from. Low in number by construction;
# never a request, a tenant or text.
SOURCES = ("none", "request", "global", "corpus", "model")
# Label of counts that belong to a whole step or to no draft.
ALL_SOURCES = "all"

_HELP = {
    "drafted_tokens": "Tokens drafted for verification, roots not counted",
    "accepted_tokens": "Drafted tokens that verification accepted, bonus tokens not counted",
    "verify_steps": "Verified rows: one request in one step",
    "steps": "Decode steps of the whole batch",
    "drafter_steps": "Decode steps in which the draft model drafted",
    "drafter_paused_steps": "Decode steps in which the draft model was paused, so that it did not follow the text",
    "draft_errors": "Failures in drafting; each made its rows root-only and cost speed only",
    "control_errors": "Failures of the controller; each let its step verify all that was drafted",
    "paused_steps": "Decode steps that were not drafted for, because no draft would have paid",
    "verified_tokens": "Tokens that verification computed, roots and padding included",
    "drafting_seconds": "Seconds spent in drafting on the step",
}


class Counters:
    """Counts by name and source, mirrored to Prometheus once `export` was called.

    Owned by one scheduler thread; readers take `snapshot`.
    """

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, float]] = {name: {} for name in _HELP}
        self._exported: dict[str, Any] = {}
        self._labels: dict[str, str] = {}

    def add(self, name: str, amount: float, source: str = ALL_SOURCES) -> None:
        by_source = self._counts[name]
        by_source[source] = by_source.get(source, 0) + amount
        if name in self._exported and amount:
            self._exported[name].labels(**self._labels, source=source).inc(amount)

    def total(self, name: str) -> float:
        return sum(self._counts[name].values())

    def snapshot(self) -> dict[str, Any]:
        """Totals by name, and the split by source under `by_source`."""
        totals: dict[str, Any] = {
            name: self.total(name) if name == "drafting_seconds" else int(self.total(name)) for name in self._counts
        }
        totals["by_source"] = {name: dict(by_source) for name, by_source in self._counts.items() if by_source}
        return totals

    def export(self, labels: dict[str, str]) -> None:
        """Registers `agentspec:*_total` with Prometheus.

        Called in the scheduler process after SGLang has set up its multiprocess directory: importing
        prometheus_client any earlier would fix the value classes to a single process.
        """
        from prometheus_client import Counter

        self._labels = labels
        for name, help_text in _HELP.items():
            self._exported[name] = Counter(f"agentspec:{name}", help_text, [*labels, "source"])
        for name, by_source in self._counts.items():
            # A counter is visible from the start, so that a scrape tells "nothing yet" from "not active".
            for source in SOURCES if name in ("drafted_tokens", "accepted_tokens", "verify_steps") else (ALL_SOURCES,):
                self._exported[name].labels(**labels, source=source).inc(by_source.get(source, 0))
