"""The clock that decides when outputs expire."""

from __future__ import annotations

import threading
import time

_STEP_SECONDS = 60.0
_BELIEVED_SECONDS = 600.0


class SteadyClock:
    """Seconds since 1970 by the system's clock, except that a step of that clock counts only after ten minutes.

    A clock that is wrong for a moment thus expires nothing that is not old. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offset = time.time() - time.monotonic()
        # The offset after the latest step, and when it was noticed, by time.monotonic().
        self._stepped = self._offset
        self._noticed = 0.0

    def now(self) -> float:
        with self._lock:
            monotonic = time.monotonic()
            offset = time.time() - monotonic
            if abs(offset - self._offset) <= _STEP_SECONDS:
                self._offset = self._stepped = offset
            elif abs(offset - self._stepped) > _STEP_SECONDS:
                self._stepped, self._noticed = offset, monotonic
            elif monotonic - self._noticed >= _BELIEVED_SECONDS:
                self._offset = offset
            return monotonic + self._offset
