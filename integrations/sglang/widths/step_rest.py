"""Measures the time of a decode step besides its verification: results, scheduling, drafting on the CPU.

    begin n ── draft ── verify ── results, scheduling ── (prompts) ── begin n + 1
    └─────────────────────────────── interval ─────────────────────────────────┘

A step pays this time once, however many tokens it verifies, so a controller has to know it.

Prompts that are read between two steps count in part. A prompt that is read alone costs the same, however many steps there
are. But where several requests end in one step, the prompts of the next requests are read together, and fewer steps mean fewer
such readings. The part of a reading that does not grow with its requests and tokens then belongs to the step. If arrivals are a
Poisson process, the share of steps with such a reading is exactly the number of readings that one more step brings: with n
arrivals in s steps, s * (1 - exp(-n / s)) steps have a reading, and its derivative by s is the chance of two or more arrivals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Protocol

from agentspec.scheduling.costs.running_fit import RunningFit

_REMEMBERED = 31
_LATEST = 12
_LEAST_KNOWN = 4
# The most steps whose verification a GPU may not have finished.
_MAX_OPEN = 8
# Shares of a first reading's seconds that are its requests' and its tokens'.
_SHARES = (0.3, 0.3)


class TimedStep(Protocol):
    num_tokens: int
    """Verified tokens."""
    seconds: float
    """Time of the verification; 0 until it is known."""
    drafter_seconds: float
    """Time of the draft model; 0 if the step did not run it."""


@dataclass(slots=True)
class _Prompts:
    """What was read between two steps."""

    readings: int = 0
    shared: int = 0
    """Number of readings of several requests."""
    requests: int = 0
    num_tokens: int = 0


class StepRest:
    """The sum of two parts: the median over the latest steps that no prompts followed, and the fixed part of a reading of
    prompts times the mean number of readings of several requests after the latest steps."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """0 until enough steps are known."""
        self._began: float | None = None
        self._requests: Sequence[object] = ()
        self._step: TimedStep | None = None
        self._prompts: _Prompts | None = None
        self._open: deque[tuple[float, TimedStep, _Prompts | None]] = deque(maxlen=_MAX_OPEN)
        self._known: deque[float] = deque(maxlen=_REMEMBERED)
        self._shared: deque[int] = deque(maxlen=_LATEST)
        self._reading = RunningFit(_SHARES)

    def begin(self, now: float, requests: Sequence[object]) -> None:
        """Called when a decode step of these requests begins. `now`: the time in seconds, by any clock."""
        if self._began is not None and self._step is not None and self._goes_on(requests):
            self._open.append((now - self._began, self._step, self._prompts))
        self._began, self._requests, self._step, self._prompts = now, requests, None, None
        while self._open and self._open[0][1].seconds > 0:
            self._learn(*self._open.popleft())

    def planned(self, step: TimedStep) -> None:
        """Called with the plan of the step that has begun."""
        self._step = step

    def prompts(self, requests: int, num_tokens: int) -> None:
        """Called when prompts are read before the next decode step: this number of requests and of their tokens."""
        read = self._prompts = self._prompts or _Prompts()
        read.readings += 1
        read.shared += requests > 1
        read.requests += requests
        read.num_tokens += num_tokens

    def interrupted(self) -> None:
        """Called when something other than prompts runs before the next decode step."""
        self._began = self._step = None

    def _goes_on(self, requests: Sequence[object]) -> bool:
        """Whether the scheduler had work all the time since the last step: one of its requests is still there."""
        return self._prompts is None or not {id(one) for one in self._requests}.isdisjoint(id(one) for one in requests)

    def _learn(self, interval: float, step: TimedStep, prompts: _Prompts | None) -> None:
        rest = max(interval - step.seconds - step.drafter_seconds, 0.0)
        if prompts is None:
            self._known.append(rest)
        base = median(self._known) if len(self._known) >= _LEAST_KNOWN else 0.0
        shared = 0
        # The arithmetic of many tokens hides what else a reading takes.
        if prompts is not None and prompts.num_tokens <= step.num_tokens * prompts.readings:
            n = prompts.readings
            self._reading.observe([prompts.requests / n, prompts.num_tokens / n], (rest - base) / n)
            shared = prompts.shared
        self._shared.append(shared)
        if len(self._shared) >= _LEAST_KNOWN:
            self.seconds = base + fmean(self._shared) * self._reading.coefficients[-1]
