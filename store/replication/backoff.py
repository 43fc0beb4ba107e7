"""When to try again, after a store has failed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

# Waits double from the first to the longest; with jitter, so that replicas do not all come back at once.
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 5.0
# So many failures in a row open the breaker: from then on waits are the longest ones.
_FAILURES_TO_OPEN = 8


class Retry:
    """Counts one thread's failures in a row and waits between its tries.

    Closed: waits grow. Open: a try each five seconds or so, and the health report says so. One success closes it.
    """

    def __init__(self, stopping: threading.Event, on_open: Callable[[], None]) -> None:
        self._stopping = stopping
        self._on_open = on_open
        self._random = random.Random()
        self.num_failures = 0
        """In a row."""
        self.failed_since: float | None = None
        """When the first of them was, by time.monotonic()."""

    @property
    def is_open(self) -> bool:
        return self.num_failures >= _FAILURES_TO_OPEN

    def succeeded(self) -> None:
        self.num_failures = 0
        self.failed_since = None

    def failed(self) -> bool:
        """Waits before the next try; False where there is to be none, because all is stopping."""
        self.num_failures += 1
        self.failed_since = self.failed_since or time.monotonic()
        if self.num_failures == _FAILURES_TO_OPEN:
            self._on_open()
        longest = _LONGEST_WAIT if self.is_open else min(_LONGEST_WAIT, _FIRST_WAIT * 2**self.num_failures)
        return not self._stopping.wait(longest * self._random.uniform(0.5, 1.0))
