"""Records the work of the device and, while the device is idle, the activity of the host.

    device   ███████            ████████        idle gap: 1.1 ms, of which reading 0.2, drafting 0.7, launch 0.2
    host       wait ▒ reading ▒ drafting ▒ launch ▒ scheduler ...

The host is in one category at a time, that of the innermost span. A gap between two pieces of work is divided among the
categories that the host was in during the gap. Time in which the server had no request at all is counted separately.

A stream may run a function of the host. The device does not work meanwhile, so the time of host functions is no busy
time. Where nothing else is on the device, it is a gap of a category of its own, whatever the scheduler's thread does.

With EMULATED_DEVICE_TRACE=FILE, all rows are written as a Chrome trace for chrome://tracing or Perfetto, in emulated
time.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

NO_REQUESTS, SCHEDULER, LAUNCH = "no_requests", "scheduler", "launch"
HOST_FUNCTION = "host_function"
"""The kind of work that is a function of the host, and the category of gaps in which the device waits for one."""
CATEGORIES = ("reading", "growing", "drafting", "planning", "staging", "prefill", SCHEDULER, LAUNCH, HOST_FUNCTION)
_HOST_FUNCTIONS = "host function"


class Timeline:
    """The timeline of one device, used on the scheduler's thread only."""

    def __init__(self, now: Callable[[], float], trace: ChromeTrace | None = None) -> None:
        self._now = now
        self._trace = trace
        self._stack = [SCHEDULER]
        self._began = [0.0]
        self._marks: deque[tuple[float, str]] = deque([(0.0, SCHEDULER)])
        self._nothing_until = 0.0
        self._busy_until = 0.0
        self._first = -1.0
        self._functions: deque[tuple[float, float]] = deque()
        self.busy = 0.0
        """Seconds in which the device worked."""
        self.host_functions = 0.0
        """Seconds in which streams ran functions of the host."""
        self.busy_of: dict[str, float] = {}
        """Seconds of work by kind. Kinds overlap if streams overlap."""
        self.idle_of: dict[str, float] = {}
        """Seconds in which the device was idle, by the category that the host was in."""

    def enter(self, category: str) -> None:
        """Notes that the host enters a category; leave() ends it."""
        now = self._now()
        self._stack.append(category)
        self._began.append(now)
        self._marks.append((now, category))

    def leave(self) -> None:
        now = self._now()
        category, began = self._stack.pop(), self._began.pop()
        self._marks.append((now, self._stack[-1]))
        if self._trace is not None:
            self._trace.add("host", category, began, now)

    def launching(self) -> None:
        """Notes that the host begins a launch; launched() ends it."""
        self._marks.append((self._now(), LAUNCH))

    def launched(self) -> None:
        self._marks.append((self._now(), self._stack[-1]))

    def nothing_to_do(self) -> None:
        """Marks the time up to now as time without any request."""
        self._nothing_until = self._now()

    def worked(self, kind: str, begin: float, end: float, stream: Any) -> None:
        """Notes that the device works from `begin` to `end`, in emulated seconds. Called when the work is queued."""
        del stream
        if kind == HOST_FUNCTION:
            self._functions.append((begin, end))
            self.host_functions += end - begin
            if self._trace is not None:
                self._trace.add(_HOST_FUNCTIONS, _HOST_FUNCTIONS, begin, end)
            return
        if self._first < 0:
            self._first = self._busy_until = begin
        if begin > self._busy_until:
            self._idle(self._busy_until, begin)
            self._busy_until = begin
        # The next gap begins at `begin` or later, so only the last earlier mark is needed.
        while len(self._marks) > 1 and self._marks[1][0] <= begin:
            self._marks.popleft()
        while self._functions and self._functions[0][1] <= begin:
            self._functions.popleft()
        self.busy += max(end - self._busy_until, 0.0)
        self._busy_until = max(end, self._busy_until)
        self.busy_of[kind] = self.busy_of.get(kind, 0.0) + end - begin
        if self._trace is not None:
            self._trace.add("device", kind, begin, end)

    def waited(self, why: str, begin: float, end: float) -> None:
        """Notes that the host waited for the device from `begin` to `end`, in emulated seconds."""
        if self._trace is not None:
            self._trace.add("host", f"wait for {why}", begin, end)

    def totals(self) -> dict[str, Any]:
        """Seconds of the device since its first work, and their shares of the time with requests."""
        idle = {name: seconds for name, seconds in self.idle_of.items() if name != NO_REQUESTS}
        active = self.busy + sum(idle.values())
        return {
            "active_seconds": active,
            "busy_seconds": self.busy,
            "host_function_seconds": self.host_functions,
            "no_requests_seconds": self.idle_of.get(NO_REQUESTS, 0.0),
            "busy_share": self.busy / active if active else 0.0,
            "idle_seconds_by": {name: idle.get(name, 0.0) for name in (*CATEGORIES, *(set(idle) - {*CATEGORIES}))},
            "idle_share_by": {name: seconds / active for name, seconds in idle.items()} if active else {},
            "busy_seconds_by": dict(self.busy_of),
        }

    def _idle(self, begin: float, end: float) -> None:
        nothing = min(max(self._nothing_until, begin), end)
        self._blame(NO_REQUESTS, nothing - begin)
        at = nothing
        while self._functions and self._functions[0][0] < end:
            began, ended = self._functions[0]
            began, stopped = max(began, at), min(ended, end)
            if stopped > began:
                self._blame_host(at, began)
                self._blame(HOST_FUNCTION, stopped - began)
                at = stopped
            if ended > end:
                break
            self._functions.popleft()
        self._blame_host(at, end)

    def _blame_host(self, begin: float, end: float) -> None:
        marks, at, category = self._marks, begin, SCHEDULER
        # The last mark before the gap still applies when the gap begins.
        while marks and marks[0][0] <= end:
            moment, following = marks.popleft()
            if moment > at:
                self._blame(category, moment - at)
                at = moment
            category = following
        self._blame(category, end - at)
        marks.appendleft((end, category))

    def _blame(self, category: str, seconds: float) -> None:
        self.idle_of[category] = self.idle_of.get(category, 0.0) + seconds


class ChromeTrace:
    """A file in the format of chrome://tracing, written during the run. The format needs no closing bracket."""

    def __init__(self, path: Path, most_events: int = 500_000) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._file.write("[\n")
        self._left = most_events
        self._first: float | None = None
        self._lanes = {"device": 0, "host": 1, _HOST_FUNCTIONS: 2}
        for name, lane in self._lanes.items():
            self._write({"ph": "M", "pid": 0, "tid": lane, "name": "thread_name", "args": {"name": name}})

    def add(self, lane: str, name: str, begin: float, end: float) -> None:
        """Writes an activity from `begin` to `end`, in seconds."""
        if self._left > 0:
            self._left -= 1
            self._first = begin if self._first is None else self._first
            event = {"ph": "X", "pid": 0, "tid": self._lanes[lane], "name": name}
            microseconds = {"ts": round((begin - self._first) * 1e6, 2), "dur": round((end - begin) * 1e6, 2)}
            self._write({**event, **microseconds})
            if self._left % 500 == 0:
                self._file.flush()

    def close(self) -> None:
        """Closes the file. Later activities are not written."""
        self._left = 0
        self._file.close()

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(json.dumps(event) + ",\n")
