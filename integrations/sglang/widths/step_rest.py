"""What a decode step takes besides its verification: results, scheduling, drafting on the CPU.

    begin n ── draft ── verify ── results, scheduling ── begin n + 1
    └───────────────────────── interval ────────────────┘

A step that verifies more pays that once for more tokens, so that a controller has to know it. Steps between which
something else ran, such as a prefill, do not count.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Protocol

_REMEMBERED = 31
_LEAST_KNOWN = 4
# Steps whose verification a GPU may not have finished.
_MAX_OPEN = 8


class TimedStep(Protocol):
    seconds: float
    """Of the verification; 0 until it is known."""
    drafter_seconds: float
    """Of a model drafter, which a step need not run."""


class StepRest:
    """The median of the latest steps, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """0 before some steps are known."""
        self._began: float | None = None
        self._step: TimedStep | None = None
        self._open: deque[tuple[float, TimedStep]] = deque(maxlen=_MAX_OPEN)
        self._known: deque[float] = deque(maxlen=_REMEMBERED)

    def begin(self, now: float) -> None:
        """A decode step begins, `now` by any clock."""
        if self._began is not None and self._step is not None:
            self._open.append((now - self._began, self._step))
        self._began, self._step = now, None
        while self._open and self._open[0][1].seconds > 0:
            interval, step = self._open.popleft()
            self._known.append(max(interval - step.seconds - step.drafter_seconds, 0.0))
            if len(self._known) >= _LEAST_KNOWN:
                self.seconds = median(self._known)

    def planned(self, step: TimedStep) -> None:
        """The step that began is this one."""
        self._step = step

    def interrupted(self) -> None:
        """Something else runs before the next step."""
        self._began = self._step = None
