"""Deletions, so that a late delivery does not bring an output back, and recently seen output ids, since a retried
append may be in the log twice."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice

from agentspec.store.records import ANY_NAMESPACE, Deletion


class Tombstones:
    """All deletions that were read from the CONTROL log. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: set[tuple[str, str]] = set()
        self._namespaces: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._requests) + len(self._namespaces)

    def add(self, deletion: Deletion) -> None:
        with self._lock:
            if deletion.request_id is not None:
                self._requests.add((deletion.namespace, deletion.request_id))
            else:
                known = self._namespaces.get(deletion.namespace, 0.0)
                self._namespaces[deletion.namespace] = max(known, deletion.time)

    def covers(self, namespace: str, request_id: str, time: float) -> bool:
        """Whether an output that finished at `time`, in seconds since 1970, is deleted."""
        with self._lock:
            if time <= self._namespaces.get(namespace, 0.0):
                return True
            if not self._requests:
                return False
            return (namespace, request_id) in self._requests or (ANY_NAMESPACE, request_id) in self._requests

    def of_namespaces(self) -> dict[str, float]:
        """For each namespace the time, in seconds since 1970, up to which its outputs are deleted."""
        with self._lock:
            return dict(self._namespaces)

    def of_requests(self) -> list[tuple[str, str]]:
        """The deleted requests, each with its namespace."""
        with self._lock:
            return list(self._requests)


class SeenIds:
    """The latest `max_ids` ids that were added. Thread-safe."""

    def __init__(self, max_ids: int) -> None:
        self._max_ids = max_ids
        self._lock = threading.Lock()
        # Used as an ordered set: a dict keeps the order of insertion.
        self._ids: dict[int, None] = {}

    def update(self, output_ids: Sequence[int]) -> None:
        """Adds ids, which must be ordered from oldest to latest."""
        with self._lock:
            self._ids.update(dict.fromkeys(output_ids[-self._max_ids :]))
            for old in list(islice(self._ids, max(0, len(self._ids) - self._max_ids))):
                del self._ids[old]

    def add(self, output_id: int) -> bool:
        """Adds an id; returns False if it was present already."""
        with self._lock:
            if output_id in self._ids:
                return False
            self._ids[output_id] = None
            if len(self._ids) > self._max_ids:
                del self._ids[next(iter(self._ids))]
            return True
