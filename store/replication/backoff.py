"""Waits between attempts after a store has failed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

# Waits in seconds double from the first to the longest. Jitter keeps replicas from returning all at once.
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0
# This number of consecutive failures opens the breaker. From then on every wait is the longest.
_FAILURES_TO_OPEN = 8


class Retry:
    """Counts the consecutive failures of one thread and waits between its attempts, for any kind of store.

    Closed: waits grow. Open: each wait is the longest, commonly 1 to 2 seconds, and the health report says so. One success closes the
    breaker. A wait ends as soon as `stopping` is set, unlike the sleep in redis.retry.Retry.
    """

    def __init__(
        self, stopping: threading.Event, on_open: Callable[[], None], *, longest: float = _LONGEST_WAIT
    ) -> None:
        """`longest`: the longest wait in seconds."""
        self._longest = longest
        self._stopping = stopping
        self._on_open = on_open
        self._random = random.Random()
        self.num_failures = 0
        """Number of consecutive failures."""
        self.failed_since: float | None = None
        """Time of the first of these failures, by time.monotonic(); None without one."""

    @property
    def is_open(self) -> bool:
        return self.num_failures >= _FAILURES_TO_OPEN

    def succeeded(self) -> None:
        self.num_failures = 0
        self.failed_since = None

    def failed(self) -> bool:
        """Waits before the next attempt; returns False if there should be none because the threads are stopping."""
        self.num_failures += 1
        self.failed_since = self.failed_since or time.monotonic()
        if self.num_failures == _FAILURES_TO_OPEN:
            self._on_open()
        longest = self._longest if self.is_open else min(self._longest, _FIRST_WAIT * 2**self.num_failures)
        return not self._stopping.wait(longest * self._random.uniform(0.5, 1.0))
