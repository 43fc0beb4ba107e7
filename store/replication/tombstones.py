"""What was deleted, so that a late delivery does not bring it back, and which outputs a replica has seen lately, since an
append that was tried twice may be in the log twice."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice

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


class SeenIds:
    """The latest ids added, up to a number of them. Safe for threads."""

    def __init__(self, max_ids: int) -> None:
        self._max_ids = max_ids
        self._lock = threading.Lock()
        # A dict keeps the order of insertion.
        self._ids: dict[int, None] = {}

    def update(self, output_ids: Sequence[int]) -> None:
        """Adds ids, the latest last."""
        with self._lock:
            self._ids.update(dict.fromkeys(output_ids[-self._max_ids :]))
            for old in list(islice(self._ids, max(0, len(self._ids) - self._max_ids))):
                del self._ids[old]

    def add(self, output_id: int) -> bool:
        """False if the id is there already."""
        with self._lock:
            if output_id in self._ids:
                return False
            self._ids[output_id] = None
            if len(self._ids) > self._max_ids:
                del self._ids[next(iter(self._ids))]
            return True
