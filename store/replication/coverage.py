"""Tracks how much of each log is in sealed segments, so that whoever loads a snapshot knows where to continue."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Log:
    position: str = ""
    """Every entry up to this position is in a sealed segment or was not kept."""
    waiting: deque[tuple[str, int]] = field(default_factory=deque)
    """Position and output id of each later entry that was read before the latest begin()."""
    read: list[tuple[str, int]] = field(default_factory=list)
    """The same of the entries that were read since."""


class Coverage:
    """What one follower has read of each log, and how much of that its engine has sealed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[str, _Log] = {}

    def start(self, namespace: str, position: str) -> None:
        """Notes that a loaded snapshot covers the log up to a position."""
        with self._lock:
            self._logs[namespace] = _Log(position)

    def read(self, namespace: str, position: str, output_id: int) -> None:
        """Notes an entry that was read and given to the engine, whether or not it kept it."""
        with self._lock:
            self._logs.setdefault(namespace, _Log()).read.append((position, output_id))

    def begin(self, namespace: str) -> None:
        """Called before the engine is asked for what it has not sealed: its answer says nothing of later entries."""
        with self._lock:
            log = self._logs.setdefault(namespace, _Log())
            log.waiting.extend(log.read)
            log.read.clear()

    def advance(self, namespace: str, unsealed: Container[int]) -> str:
        """The furthest position up to which no output is among the unsealed ones; "" for the log's beginning. Entries
        that were read after begin() do not count."""
        with self._lock:
            log = self._logs.setdefault(namespace, _Log())
            while log.waiting and log.waiting[0][1] not in unsealed:
                log.position = log.waiting.popleft()[0]
            return log.position

    def prune(self, held: Container[str]) -> list[str]:
        """Forgets the logs of namespaces that are not `held`. Returns those of them that have entries to advance over
        first, so that nothing goes on behind an entry that is not sealed."""
        with self._lock:
            names = [name for name in self._logs if name not in held]
            unread = [name for name in names if self._logs[name].read or self._logs[name].waiting]
            for name in set(names).difference(unread):
                del self._logs[name]
            return unread

    def forget(self) -> None:
        """Forgets all logs, because the store's contents were replaced."""
        with self._lock:
            self._logs.clear()
