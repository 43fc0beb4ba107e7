"""Lets code that measures itself see emulated seconds: on the scheduler's thread its `time.perf_counter` is the clock.

agentspec's controllers learn what a step costs the host by it. By the time that really passes they would learn the cost of
the emulation, too, and choose other widths than beside a GPU.
"""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType
from typing import Any

from agentspec.integrations.emulated_device.device.clock import Clock

_MEASURED = "agentspec."
_OURS = "agentspec.integrations.emulated_device"


class HostTime(ModuleType):
    """The module `time`, but for its perf_counter on one thread."""

    def __init__(self, clock: Clock) -> None:
        """Of the thread that makes it."""
        super().__init__("time")
        self._clock = clock
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def perf_counter(self) -> float:
        """Seconds since any moment; differences mean something on one thread alone."""
        return self._clock.now() if threading.get_ident() == self._thread else time.perf_counter()


def use_emulated_time(clock: Clock) -> list[str]:
    """Gives all loaded modules of agentspec that import `time` the clock of this thread; returns their names."""
    found, host_time = [], HostTime(clock)
    for name, module in list(sys.modules.items()):
        if name.startswith(_MEASURED) and not name.startswith(_OURS) and getattr(module, "time", None) is time:
            module.time = host_time  # type: ignore[attr-defined]
            found.append(name)
    return sorted(found)
