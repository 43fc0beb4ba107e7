"""Counts by the values of one label, for `/server_info` and for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class LabelledCounts:
    """Counts under a name, split by a label whose values are all known beforehand; mirrored to Prometheus once `export`
    was called. Owned by one thread; readers take `snapshot`.
    """

    def __init__(self, name: str, help_text: str, label: str, values: Sequence[str]) -> None:
        self.name = name
        self._help = help_text
        self._label = label
        self._counts = dict.fromkeys(values, 0)
        self._exported: dict[str, Any] = {}

    def add(self, value: str, amount: int = 1) -> None:
        """Raises KeyError for a value that was not announced: labels of metrics are bounded."""
        self._counts[value] += amount
        if self._exported:
            self._exported[value].inc(amount)

    def snapshot(self) -> dict[str, int]:
        """The values that were counted at all."""
        return {value: n for value, n in self._counts.items() if n}

    def export(self, labels: dict[str, str]) -> None:
        """Registers `agentspec:{name}_total`; see Counters.export()."""
        from prometheus_client import Counter

        counter = Counter(f"agentspec:{self.name}", self._help, [*labels, self._label])
        for value, n in self._counts.items():
            self._exported[value] = counter.labels(**labels, **{self._label: value})
            self._exported[value].inc(n)
