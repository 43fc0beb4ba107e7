"""The clock that decides when outputs expire."""

from __future__ import annotations

import math
import threading
import time

STEP_SECONDS = 60.0
_BELIEVED_SECONDS = 600.0


class SteadyClock:
    """Seconds since 1970 by the system's clock, except that a step of that clock counts only after ten minutes.

    A clock that is wrong for a moment thus expires nothing that is not old. Thread-safe.
    """

    def __init__(self, before: float = math.inf) -> None:
        """`before`: an earlier reading, from before the start. A clock that is ahead of it counts as one that has stepped
        since then, because that may be wrong for a moment too."""
        self._lock = threading.Lock()
        monotonic = time.monotonic()
        # The offset after the latest step, and when it was noticed, by time.monotonic().
        self._stepped = time.time() - monotonic
        self._noticed = monotonic
        self._offset = min(self._stepped, before - monotonic)

    def now(self) -> float:
        with self._lock:
            monotonic = time.monotonic()
            offset = time.time() - monotonic
            if abs(offset - self._offset) <= STEP_SECONDS:
                self._offset = self._stepped = offset
            elif abs(offset - self._stepped) > STEP_SECONDS:
                self._stepped, self._noticed = offset, monotonic
            elif monotonic - self._noticed >= _BELIEVED_SECONDS:
                self._offset = offset
            return monotonic + self._offset
