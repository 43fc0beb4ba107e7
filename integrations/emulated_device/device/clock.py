"""The clock of an emulated server: time as it would pass on the host of a GPU.

    now = real seconds - excluded seconds (work of the device, and the emulation itself) + charged seconds (launches)

This process still computes the work of a GPU, because later values depend on it, but that time is excluded. The time
that the host of a GPU would need to launch the work is charged instead. All other time counts as it passes: Python and
native code of the host take as long as they take here.

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
_MOST_TIMES_THE_CPU = 3.0
"""Real time beyond this many times a function's CPU time is no time of the function: see Clock.seconds_of()."""


class Clock:
    """Seconds since an arbitrary moment. The clock never runs backwards."""

    def __init__(
        self,
        wall: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        thread_time: Callable[[], float] = time.thread_time,
    ) -> None:
        """Tests replace the arguments.

        Args:
            wall: Returns real seconds.
            sleep: Waits for a number of seconds.
            thread_time: Returns the CPU seconds of the calling thread.
        """
        self.wall = wall
        self._sleep = sleep
        self._thread_time = thread_time
        self.excluded = 0.0
        """The number of real seconds excluded so far."""
        self.charged = 0.0
        """Seconds added so far: those of launches, and waiting time that did not pass on `wall`."""
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
        """Stops the clock until start(); calls may be nested. `since`: an earlier reading of `wall`, from which on time
        is excluded; None: now."""
        if not self._depth:
            self._left_out_since = self.wall() if since is None else since
            self._frozen_at = self._left_out_since - self.excluded + self.charged
        self._depth += 1

    def start(self) -> None:
        """Ends the exclusion that the matching stop() began."""
        self._depth -= 1
        if not self._depth:
            self.excluded += self.wall() - self._left_out_since

    def seconds_of(self, function: Callable[[], object]) -> float:
        """Runs a function that a GPU's driver would run on a thread of its own, and returns the seconds it takes there.

        These are the real seconds, as for all other time of the host, because the function may share its work with
        other threads and wait for them. If they are more than three times this thread's CPU time, they are the CPU time
        instead: then the function waited for a core, or to get the GIL back, which it would not need on the driver's
        thread. A function that leaves nearly all of its work to other threads therefore counts too little.
        """
        began, began_thread = self.wall(), self._thread_time()
        function()
        on_cpu = self._thread_time() - began_thread
        took = self.wall() - began
        return max(took if took <= _MOST_TIMES_THE_CPU * on_cpu else on_cpu, 0.0)

    def sleep_until(self, moment: float) -> float:
        """Waits until `moment`, in emulated seconds, and returns the number of seconds waited.

        The operating system wakes threads late, much too late on a busy machine, whereas the host of a GPU polls. The
        clock therefore advances exactly to `moment`.
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
    """A clock that leaves out the time in which this thread was ready to run but had no core, as reported by Linux.
    Raises ConfigError if the system does not report this time."""
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
    """The module `time`, except that perf_counter returns emulated seconds on one thread.

    agentspec's controllers use it to learn what a step costs the host. With real time they would learn the cost of the
    emulation, too, and choose other widths than on a GPU.
    """

    def __init__(self, clock: Clock) -> None:
        """The thread that creates the object is the one that gets emulated seconds."""
        super().__init__("time")
        self._clock = clock
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def perf_counter(self) -> float:
        """Seconds since an arbitrary moment. Only differences on the same thread are meaningful."""
        return self._clock.now() if threading.get_ident() == self._thread else time.perf_counter()


def use_emulated_time(clock: Clock) -> list[str]:
    """Gives this thread's clock to all loaded modules of agentspec that import `time`. Returns their names."""
    found, host_time = [], HostTime(clock)
    for name, module in list(sys.modules.items()):
        if name.startswith(_MEASURED) and not name.startswith(_OURS) and getattr(module, "time", None) is time:
            module.time = host_time  # type: ignore[attr-defined]
            found.append(name)
    return sorted(found)
