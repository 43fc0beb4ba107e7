"""How far the log of each namespace is in sealed segments, hence where a reader of a snapshot has to go on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Log:
    position: str = ""
    """Everything up to here is in sealed segments, or not kept."""
    waiting: deque[tuple[str, int]] = field(default_factory=deque)
    """Position and output id of the entries after that, as far as they were read."""


class Coverage:
    """What one follower has read of each log, and how much of that its engine has sealed. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[str, _Log] = {}

    def start(self, namespace: str, position: str) -> None:
        """A snapshot was loaded that covers the log up to a position."""
        with self._lock:
            self._logs[namespace] = _Log(position)

    def read(self, namespace: str, position: str, output_id: int) -> None:
        """An entry was read, whatever became of it."""
        with self._lock:
            self._logs.setdefault(namespace, _Log()).waiting.append((position, output_id))

    def advance(self, namespace: str, unsealed: Container[int]) -> str:
        """The furthest position up to which no output is among the unsealed ones; "" for the log's beginning."""
        with self._lock:
            log = self._logs.setdefault(namespace, _Log())
            while log.waiting and log.waiting[0][1] not in unsealed:
                log.position = log.waiting.popleft()[0]
            return log.position

    def forget(self) -> None:
        """The logs begin anew."""
        with self._lock:
            self._logs.clear()
