"""How long parts of a step take on the device that runs them."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

Report = Callable[[float], None]


class DeviceClock:
    """Measures blocks of work; on a GPU without waiting for them, so that reports come some steps late, in order."""

    def __init__(self, device: torch.device | str) -> None:
        kind = torch.device(device).type
        self._module: Any = None if kind == "cpu" else torch.get_device_module(kind)
        self._running: deque[tuple[Any, Any, Report]] = deque()

    @contextlib.contextmanager
    def timed(self, report: Report) -> Iterator[None]:
        """Reports the seconds of the work that the block launches; nothing where the block raises."""
        start = self.start()
        yield
        self.stop(start, report)

    def start(self) -> Any:
        """Begins to measure; give what it returns to stop()."""
        if self._module is None:
            return time.perf_counter()
        start = self._module.Event(enable_timing=True)
        start.record()
        return start

    def stop(self, start: Any, report: Report) -> None:
        """Reports the seconds of the work launched since start()."""
        if self._module is None:
            report(time.perf_counter() - start)
            return
        end = self._module.Event(enable_timing=True)
        end.record()
        # Here, where the device has work, and not in start(), where it may wait for some.
        self._report_finished()
        self._running.append((start, end, report))

    def _report_finished(self) -> None:
        while self._running and self._running[0][1].query():
            start, end, report = self._running.popleft()
            report(start.elapsed_time(end) / 1e3)
