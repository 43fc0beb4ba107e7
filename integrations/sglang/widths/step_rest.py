"""Measures what a decode step costs besides its verification and the draft model.

    device    verify n ─── rest ─── (prompts) ─── (passes) ─── verify n + 1
                      └────────────────── interval ───────────────────────┘
    host      ── launch n + 1 ── wait for result n ── results, scheduling ── launch n + 2 ──

The device pays the rest of an interval once, however many tokens a step verifies: accepted tokens, the draft model's
reading, drafts of the CPU. In stream order the host works at the same time. A step then takes as long as the slower of the
two, so a controller has to know both. The rest is measured only where the device did not run dry. The host's time is
that from one launch to the next without the wait, and grows if it launches the draft model's passes.

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
from statistics import fmean, median, median_low
from typing import Protocol

from agentspec.integrations.sglang.drafting.device_clock import Start, is_over, seconds_between
from agentspec.scheduling.costs.running_fit import RunningFit

_REMEMBERED = 31
_LATEST = 12
_LEAST_KNOWN = 4
# The most steps whose verification a GPU may not have finished.
_MAX_OPEN = 8
# Shares of a first reading's seconds that are its requests' and its tokens'.
_SHARES = (0.3, 0.3)


class TimedStep(Protocol):
    seconds: float
    """Time of the verification; 0 until it is known."""
    drafter_seconds: float
    """Time of the draft model; 0 if the step did not run it."""
    passes_launch: float
    """The host's time for launching the draft model's passes; 0 if the step did not run them, or waited for them."""
    extend_launch: float
    """The host's time for launching the draft model's reading of the accepted tokens; 0 if it does not read them."""
    end: Start | None
    """When the verification ends; None until it is launched."""

    @property
    def num_tokens(self) -> int:
        """Verified tokens."""


@dataclass(slots=True)
class _Began:
    """The latest step, on the host."""

    began: float
    """When the host began with it, in seconds."""
    requests: Sequence[object]
    step: TimedStep | None = None
    launched: float | None = None
    """When all of it was launched; None if the host waits inside the step."""
    waited: float | None = None
    """Time for which the host waited for the result before it; None if no result came."""


@dataclass(slots=True)
class _Prompts:
    """What was read between two steps."""

    readings: int = 0
    shared: int = 0
    """Number of readings of several requests."""
    requests: int = 0
    num_tokens: int = 0


@dataclass(slots=True)
class _Interval:
    """From the end of one verification to that of the next."""

    before: TimedStep
    prompts: _Prompts | None
    step: TimedStep | None = None
    ran_dry: bool = False
    """Whether the device had nothing to do when the host had launched the verification, in a step that does not wait."""


class HostTime:
    """The host's time of steps in stream order: medians of its parts over the latest steps."""

    def __init__(self) -> None:
        self._base: deque[float] = deque(maxlen=_REMEMBERED)
        self._passes: deque[float] = deque(maxlen=_REMEMBERED)
        self._extend: deque[float] = deque(maxlen=_REMEMBERED)
        self._seconds = (0.0, 0.0, 0.0)

    def observe(self, seconds: float, step: TimedStep) -> None:
        """Learns from a step that took the host `seconds`, its waits not counted."""
        for known, part in ((self._passes, step.passes_launch), (self._extend, step.extend_launch)):
            if part:
                known.append(part)
        self._base.append(max(seconds - step.passes_launch - step.extend_launch, 0.0))
        if len(self._base) >= _LEAST_KNOWN:
            # Kernels may have been compiled in the first launch. Believed, it would keep the passes from being launched again.
            passes, extend = (median_low((0.0, *known)) for known in (self._passes, self._extend))
            self._seconds = median(self._base), passes, extend

    def least(self, *, passes: bool, extends: bool) -> float:
        """Seconds of a step: the device cannot be faster. 0 if the host waits inside steps, or too little is known.

        Args:
            passes: Whether the host launches the draft model's passes.
            extends: Whether the draft model reads the accepted tokens.
        """
        base, of_passes, of_extend = self._seconds
        return base + (of_passes if passes else 0.0) + (of_extend if extends else 0.0)

    def describe(self) -> dict[str, float]:
        """Milliseconds by part, for `/server_info`."""
        names = ("step", "launch_passes", "launch_extend")
        return {name: seconds * 1e3 for name, seconds in zip(names, self._seconds, strict=True)}


class StepRest:
    """What the latest steps have shown: medians, and for prompts the fixed part of a reading times the mean number of readings
    of several requests between two steps. Owned by the scheduler's thread."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds of a step on the device besides its verification and the draft model. 0 until enough steps are known."""
        self._last: _Began | None = None
        self._interval: _Interval | None = None
        self._prompts: _Prompts | None = None
        self._open: deque[tuple[_Interval, TimedStep]] = deque(maxlen=_MAX_OPEN)
        self._known: deque[float] = deque(maxlen=_REMEMBERED)
        self._shared: deque[int] = deque(maxlen=_LATEST)
        self._reading = RunningFit(_SHARES)
        self._reading_seconds = 0.0
        self.host = HostTime()
        self.ran_dry = False
        """`_Interval.ran_dry` of the latest step."""

    def least(self, *, passes: bool, extends: bool) -> float:
        """HostTime.least(), with the same part of the readings of prompts as in `seconds`."""
        least = self.host.least(passes=passes, extends=extends)
        return least + self._reading_seconds if least else 0.0

    def begin(self, now: float, requests: Sequence[object]) -> None:
        """Called when the host begins with a decode step of these requests. `now`: the time in seconds, by the host's
        clock."""
        last, prompts, self._prompts = self._last, self._prompts, None
        before = None if last is None else last.step
        if last is not None and before is not None:
            if last.waited is not None and prompts is None:
                self.host.observe(now - last.began - last.waited, before)
            # The scheduler had work all the time since the last step if one of its requests is still there.
            if prompts is not None and {id(one) for one in last.requests}.isdisjoint(id(one) for one in requests):
                before = None
        self._last = _Began(now, requests)
        self._interval = None
        while self._open and self._open[0][1].seconds > 0:
            self._learn(*self._open.popleft())
        if before is not None:
            self._interval = _Interval(before, prompts)

    def planned(self, step: TimedStep) -> None:
        """Called with the plan of the step that has begun."""
        if self._last is not None:
            self._last.step = step
        if self._interval is not None:
            self._interval.step = step

    def verifies(self, *, in_order: bool) -> None:
        """Called when the verification of the step was launched. `in_order`: whether the step is one in stream order."""
        interval = self._interval
        if interval is not None and interval.step is not None and interval.before.end is not None:
            self.ran_dry = interval.ran_dry = in_order and is_over(interval.before.end)
            self._open.append((interval, interval.step))

    def launched(self, now: float) -> None:
        """Called when a step was launched, and the host is about to wait for the result of the step before."""
        last, interval = self._last, self._interval
        if last is None:
            return
        last.launched = now
        before = None if interval is None or interval.prompts is not None else interval.before.end
        if before is not None and is_over(before):
            last.waited = 0.0

    def resumed(self, now: float) -> None:
        """Called when the host has that result."""
        last = self._last
        if last is not None and last.launched is not None and last.waited is None:
            last.waited = now - last.launched

    def prompts(self, requests: int, num_tokens: int) -> None:
        """Called when prompts are read before the next decode step: this number of requests and of their tokens."""
        read = self._prompts = self._prompts or _Prompts()
        read.readings += 1
        read.shared += requests > 1
        read.requests += requests
        read.num_tokens += num_tokens

    def interrupted(self) -> None:
        """Called when something other than prompts runs before the next decode step."""
        self._last = None

    def _learn(self, of: _Interval, step: TimedStep) -> None:
        prompts = of.prompts
        assert of.before.end is not None and step.end is not None
        rest = max(seconds_between(of.before.end, step.end) - step.seconds - step.drafter_seconds, 0.0)
        if prompts is None and not of.ran_dry:
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
            self._reading_seconds = fmean(self._shared) * self._reading.coefficients[-1]
            self.seconds = base + self._reading_seconds
