"""Deletions, so that a late delivery does not bring an output back, and recently seen output ids, since a retried
append may be in the log twice."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

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

    def namespaces(self) -> set[str]:
        """The namespaces that are named in deletions."""
        with self._lock:
            return {*self._namespaces, *(name for name, _ in self._requests)} - {ANY_NAMESPACE}

    def of_requests(self) -> list[tuple[str, str]]:
        """The deleted requests, each with its namespace."""
        with self._lock:
            return list(self._requests)


class SeenIds:
    """At least the latest `num_ids` different ids that were added, and at most twice as many. Thread-safe.

    Two sets, of which the older one is dropped as a whole. A dict could drop single ids in their order, but it searches for
    its first id among all those that it has dropped.
    """

    def __init__(self, num_ids: int) -> None:
        self._num_ids = num_ids
        self._lock = threading.Lock()
        self._latest: set[int] = set()
        self._before: set[int] = set()

    def update(self, output_ids: Sequence[int]) -> None:
        """Adds ids, which must be ordered from oldest to latest."""
        with self._lock:
            for output_id in output_ids[-2 * self._num_ids :]:
                self._add(output_id)

    def add(self, output_id: int) -> bool:
        """Adds an id; returns False if it was present already."""
        with self._lock:
            return self._add(output_id)

    def discard(self, output_ids: AbstractSet[int]) -> None:
        """Forgets ids."""
        with self._lock:
            self._latest -= output_ids
            self._before -= output_ids

    def _add(self, output_id: int) -> bool:
        if output_id in self._latest or output_id in self._before:
            return False
        self._latest.add(output_id)
        if len(self._latest) == self._num_ids:
            self._before, self._latest = self._latest, set()
        return True
