"""Which outputs a replica has seen lately, since an append that was tried twice may be in the log twice."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice


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
