"""Shows progress on stderr: a bar on a terminal, otherwise a line at intervals."""

from __future__ import annotations

import sys
import time
from typing import Self

_WIDTH = 24


class Progress:
    """Counts to `total`. Use it as a context manager, which erases the bar at the end."""

    def __init__(self, label: str, total: int, *, line_seconds: float = 30.0) -> None:
        self._label = label
        self._total = max(total, 1)
        self._terminal = sys.stderr.isatty()
        self._interval = 0.1 if self._terminal else line_seconds
        self._next = time.monotonic() + self._interval

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def update(self, done: int, note: str = "") -> None:
        """Shows that `done` of the total are done, unless the display was updated very recently."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._interval
        count = f"{done}/{self._total} {note}".rstrip()
        if self._terminal:
            filled = _WIDTH * min(done, self._total) // self._total
            bar = "#" * filled + "." * (_WIDTH - filled)
            print(f"\r\x1b[K{self._label} [{bar}] {count}", end="", file=sys.stderr, flush=True)
        else:
            print(f"{self._label}: {count}", file=sys.stderr, flush=True)


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def waiting(seconds: float) -> None:
    """Shows on a terminal how long a server has been starting."""
    if sys.stderr.isatty():
        print(f"\r  waiting {seconds:.0f} s", end="\r", file=sys.stderr, flush=True)
