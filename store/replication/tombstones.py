"""Deletions, so that a late delivery does not bring an output back, and recently seen output ids, since a retried
append may be in the log twice."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Sequence
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
    """At least the latest `num_ids` different ids that were added, and at most twice as many. Ids are not 0. Thread-safe.

    Two hash tables, of which the older one is dropped as a whole. They are arrays, so that their memory is small and does not
    grow, and no slot is freed, so that a search ends at the first empty one.
    """

    def __init__(self, num_ids: int) -> None:
        self._num_ids = num_ids
        self._mask = (1 << (2 * num_ids - 1).bit_length()) - 1
        self._lock = threading.Lock()
        self._latest, self._before = self._table(), self._table()
        self._num_latest = 0

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
            before, latest = (set(table) - output_ids - {0} for table in (self._before, self._latest))
            self._before, self._latest = self._table(before), self._table(latest)
            self._num_latest = len(latest)

    def _add(self, output_id: int) -> bool:
        slot = self._slot(self._latest, output_id)
        if self._latest[slot] or self._before[self._slot(self._before, output_id)]:
            return False
        self._latest[slot] = output_id
        self._num_latest += 1
        if self._num_latest == self._num_ids:
            self._before, self._latest, self._num_latest = self._latest, self._table(), 0
        return True

    def _table(self, output_ids: Iterable[int] = ()) -> array[int]:
        table = array("Q", bytes(8 * (self._mask + 1)))
        for each in output_ids:
            table[self._slot(table, each)] = each
        return table

    def _slot(self, table: array[int], output_id: int) -> int:
        """Where the id is, or the empty place for it."""
        slot = (output_id ^ output_id >> 32) & self._mask
        while table[slot] not in (0, output_id):
            slot = slot + 1 & self._mask
        return slot
