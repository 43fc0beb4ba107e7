"""Measures the time of a decode step besides its verification: results, scheduling, drafting on the CPU.

    begin n ── draft ── verify ── results, scheduling ── begin n + 1
    └───────────────────────── interval ────────────────┘

A step pays this time once, however many tokens it verifies, so a controller has to know it. An interval in which
something else ran, such as a prefill, does not count.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Protocol

_REMEMBERED = 31
_LEAST_KNOWN = 4
# The most steps whose verification a GPU may not have finished.
_MAX_OPEN = 8


class TimedStep(Protocol):
    seconds: float
    """Time of the verification; 0 until it is known."""
    drafter_seconds: float
    """Time of the draft model; 0 if the step did not run it."""


class StepRest:
    """The median over the latest steps, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """0 until enough steps are known."""
        self._began: float | None = None
        self._step: TimedStep | None = None
        self._open: deque[tuple[float, TimedStep]] = deque(maxlen=_MAX_OPEN)
        self._known: deque[float] = deque(maxlen=_REMEMBERED)

    def begin(self, now: float) -> None:
        """Called when a decode step begins. `now`: the time in seconds, by any clock."""
        if self._began is not None and self._step is not None:
            self._open.append((now - self._began, self._step))
        self._began, self._step = now, None
        while self._open and self._open[0][1].seconds > 0:
            interval, step = self._open.popleft()
            self._known.append(max(interval - step.seconds - step.drafter_seconds, 0.0))
            if len(self._known) >= _LEAST_KNOWN:
                self.seconds = median(self._known)

    def planned(self, step: TimedStep) -> None:
        """Called with the plan of the step that has begun."""
        self._step = step

    def interrupted(self) -> None:
        """Called when something else runs before the next decode step."""
        self._began = self._step = None
