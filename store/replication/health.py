"""The health report of a store: counts and times only, never text, tenants or passwords."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

# Number of latest lags from which the percentiles are computed.
_KEPT_LAGS = 1000


class Health:
    """Counters of all threads that use a store. Thread-safe."""

    NAMES = (
        "delivered_outputs", "delivered_bytes", "received_outputs", "received_bytes", "loaded_outputs",
        "skipped_records", "refused_outputs", "deletions", "errors", "resets", "snapshots", "snapshot_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(self.NAMES, 0)
        self._lags: deque[float] = deque(maxlen=_KEPT_LAGS)
        self._last_error: tuple[float, str] | None = None

    def add(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counts[name] += amount

    def received(self, num_bytes: int, finished: float) -> None:
        """Counts an output that the engine got from another replica; `finished` is a time of that replica's clock."""
        with self._lock:
            self._counts["received_outputs"] += 1
            self._counts["received_bytes"] += num_bytes
            self._lags.append(max(time.time() - finished, 0.0))

    def failed(self, what: str, error: Exception) -> None:
        """Notes an error. Messages of agentspec's own errors contain no secrets."""
        with self._lock:
            self._counts["errors"] += 1
            self._last_error = (time.time(), f"{what}: {error}")

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counts[name]

    def snapshot(self) -> dict[str, Any]:
        """All counts, and `lag_seconds`: median, 99th percentile and maximum over the latest received outputs."""
        with self._lock:
            lags = sorted(self._lags)
            result: dict[str, Any] = dict(self._counts)
            error = self._last_error
        result["lag_seconds"] = (
            {"p50": lags[len(lags) // 2], "p99": lags[min(len(lags) - 1, len(lags) * 99 // 100)], "max": lags[-1]}
            if lags
            else None
        )
        result["last_error"] = None if error is None else {"time": error[0], "message": error[1]}
        return result
