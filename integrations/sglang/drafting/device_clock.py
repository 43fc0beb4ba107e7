"""Measures how long parts of a step take on their device."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Protocol

import torch

Report = Callable[[float], None]


class DeviceEvent(Protocol):
    """An event of a device, such as torch.cuda.Event."""

    def record(self, stream: Any = None) -> None: ...

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Any) -> float: ...


Start = float | DeviceEvent
"""When a measured block began or ended: the host's time in seconds, or an event of the device."""


def is_over(end: Start) -> bool:
    """Whether the device has come to the end of a measured block."""
    return isinstance(end, float) or end.query()


def seconds_between(one: Start, other: Start) -> float:
    """From the end of one measured block to that of a later one, both over and measured by one clock."""
    if isinstance(one, float) or isinstance(other, float):
        return float(other) - float(one)  # type: ignore[arg-type]
    return one.elapsed_time(other) / 1e3


class DeviceClock:
    """Measures blocks of work. On a GPU it does not wait for them, so reports come in order but some steps later."""

    def __init__(self, device: torch.device | str) -> None:
        kind = torch.device(device).type
        self._module: ModuleType | None = None if kind == "cpu" else torch.get_device_module(kind)
        self._running: deque[tuple[DeviceEvent, DeviceEvent, Report]] = deque()

    @contextlib.contextmanager
    def timed(self, report: Report) -> Iterator[None]:
        """Reports the seconds of the work that the block launches. Reports nothing if the block raises."""
        start = self.start()
        yield
        self.stop(start, report)

    def start(self) -> Start:
        """Begins to measure. Pass the result to stop()."""
        if self._module is None:
            return time.perf_counter()
        start: DeviceEvent = self._module.Event(enable_timing=True)
        start.record()
        return start

    def stop(self, start: Start, report: Report) -> Start:
        """Reports the seconds of the work launched since start(). Returns when it ends."""
        if isinstance(start, float):
            now = time.perf_counter()
            report(now - start)
            return now
        assert self._module is not None
        end: DeviceEvent = self._module.Event(enable_timing=True)
        end.record()
        # Not in start(): there the device may be waiting for work. Here it has some.
        self._report_finished()
        self._running.append((start, end, report))
        return end

    def _report_finished(self) -> None:
        while self._running and self._running[0][1].query():
            start, end, report = self._running.popleft()
            report(start.elapsed_time(end) / 1e3)
