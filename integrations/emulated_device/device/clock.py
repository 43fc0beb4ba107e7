"""The clock of an emulated server: time as it would pass on the host of a GPU.

    now = seconds that passed - those of work that a device would do, and of the emulation itself + charged launches

Work that a GPU would do is computed by this process all the same, because later values depend on it; that time is
excluded. What the host of a GPU would spend to launch the work is charged instead. Everything else passes as it does:
Python and native code of the host take what they take here.

Only the scheduler's thread reads and changes the clock.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from agentspec.errors import ConfigError

_MEASURED = "agentspec."
_OURS = "agentspec.integrations.emulated_device"


class Clock:
    """Seconds since an arbitrary moment. The clock never runs backwards."""

    def __init__(
        self, wall: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """`wall` returns real seconds, and `sleep` waits for a number of seconds; tests replace both."""
        self.wall = wall
        self._sleep = sleep
        self.excluded = 0.0
        """The number of real seconds excluded so far."""
        self.charged = 0.0
        """Seconds added so far: those of launches, and what was waited and did not pass by `wall`."""
        self.launching = 0.0
        """The number of seconds added for launches so far."""
        self._depth = 0
        self._left_out_since = 0.0
        self._frozen_at = 0.0

    def now(self) -> float:
        """Emulated seconds. The clock stands still while time is excluded."""
        if self._depth:
            return self._frozen_at
        return self.wall() - self.excluded + self.charged

    def charge(self, seconds: float) -> None:
        """Adds the time that the host of a GPU would need for a launch."""
        self.launching += seconds
        self._add(seconds)

    def exclude(self, seconds: float) -> None:
        """Excludes real seconds that have passed, unless the clock is already stopped."""
        if not self._depth:
            self.excluded += seconds

    @property
    def stands(self) -> bool:
        """Whether the clock is stopped, so that time is excluded."""
        return self._depth > 0

    def stop(self, since: float | None = None) -> None:
        """From now on time is left out, until start(); nested calls count. `since`, an earlier reading of `wall`: from
        then on."""
        if not self._depth:
            self._left_out_since = self.wall() if since is None else since
            self._frozen_at = self._left_out_since - self.excluded + self.charged
        self._depth += 1

    def start(self) -> None:
        """Ends the exclusion that stop() began."""
        self._depth -= 1
        if not self._depth:
            self.excluded += self.wall() - self._left_out_since

    def sleep_until(self, moment: float) -> float:
        """Waits until `moment`, in emulated seconds, and returns for how long it waited.

        The operating system wakes threads too late, by much where the machine is busy. The host of a GPU polls. So just
        the seconds until the moment pass.
        """
        waited = moment - self.now()
        if waited <= 0:
            return 0.0
        began = self.wall()
        self._sleep(waited)
        self._add(waited if self._depth else waited - (self.wall() - began))
        return waited

    def _add(self, seconds: float) -> None:
        self.charged += seconds
        self._frozen_at += seconds


def undisturbed() -> Callable[[], float]:
    """Seconds less those in which this thread was ready to run and something else had its core; as Linux tells it.

    Raises:
        ConfigError: The system does not tell.
    """
    path = Path("/proc/thread-self/schedstat")
    try:
        # The file is opened once and keeps describing the thread that opened it.
        file = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"the clock `thread` needs {path}, which cannot be read ({error}); use `wall`") from error
    latest = 0.0

    def seconds() -> float:
        nonlocal latest
        now = time.perf_counter()
        waited = int(os.pread(file, 64, 0).split()[1]) * 1e-9
        # The two values are not read at the same moment.
        latest = max(latest, now - waited)
        return latest

    return seconds


class HostTime(ModuleType):
    """The module `time`, but for its perf_counter on one thread, where it tells emulated seconds.

    agentspec's controllers learn by it what a step costs the host. By the time that really passes they would learn the
    cost of the emulation, too, and choose other widths than beside a GPU.
    """

    def __init__(self, clock: Clock) -> None:
        """The thread that creates the object is the one that gets emulated seconds."""
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
