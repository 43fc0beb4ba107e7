"""What a decode step takes besides its verification: results, scheduling, drafting on the CPU.

    begin n ── draft ── verify ── results, scheduling ── begin n + 1
    └───────────────────────── interval ────────────────┘

A step that verifies more pays that once for more tokens, so a controller has to know it. Steps in which a draft model
ran are kept apart, because the host waits once more in them, for the draft model's trees. Steps between which something
else ran, such as a prefill, do not count.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Protocol

_REMEMBERED = 31
_LEAST_KNOWN = 4
# Steps whose verification a GPU may not have finished.
_MAX_OPEN = 8


class Timed(Protocol):
    seconds: float
    """Seconds on the device; 0 until they are known."""


class TimedStep(Timed, Protocol):
    """A step; its seconds are those of the verification."""

    drafter: Timed | None
    """The draft model's passes, whose seconds are known when those of the verification are; None: they did not run."""


class StepRest:
    """Medians over the latest steps."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._step: TimedStep | None = None
        self._open: deque[tuple[float, TimedStep]] = deque(maxlen=_MAX_OPEN)
        self._known: dict[bool, deque[float]] = {kind: deque(maxlen=_REMEMBERED) for kind in (False, True)}
        self._medians: dict[bool, float] = {}

    def seconds(self, has_drafter: bool) -> float:
        """Seconds that a step takes besides, with or without a draft model.

        Where only the other kind of step is known, it is the rest of that kind; 0 before some steps are known.
        """
        return self._medians.get(has_drafter, self._medians.get(not has_drafter, 0.0))

    def begin(self, now: float) -> None:
        """A decode step begins, `now` by any clock."""
        if self._began is not None and self._step is not None:
            self._open.append((now - self._began, self._step))
        self._began, self._step = now, None
        while self._open and self._open[0][1].seconds > 0:
            interval, step = self._open.popleft()
            has_drafter = step.drafter is not None
            known = self._known[has_drafter]
            known.append(max(interval - step.seconds - (step.drafter.seconds if step.drafter else 0.0), 0.0))
            if len(known) >= _LEAST_KNOWN:
                self._medians[has_drafter] = median(known)

    def planned(self, step: TimedStep) -> None:
        """The step that began is this one."""
        self._step = step

    def interrupted(self) -> None:
        """Something else runs before the next step."""
        self._began = self._step = None
