"""What was deleted, so that a late delivery does not bring it back."""

from __future__ import annotations

import threading

from agentspec.store.records import ANY_NAMESPACE, Deletion


class Tombstones:
    """All deletions that the CONTROL log has told of. Safe for threads."""

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
        """Until when each namespace's outputs are deleted."""
        with self._lock:
            return dict(self._namespaces)

    def of_requests(self) -> list[tuple[str, str]]:
        """The deleted requests, each with its namespace."""
        with self._lock:
            return list(self._requests)
