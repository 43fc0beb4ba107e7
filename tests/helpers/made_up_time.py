"""Simulated time for tests of the emulated device: computing takes no time, and sleeping takes the requested time."""

from __future__ import annotations

from agentspec.integrations.emulated_device.device.clock import Clock


class MadeUpTime:
    """A clock that advances only when it is told to."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.late = 0.0
        """Seconds by which a sleeper wakes up too late."""
        self.blocked = 0.0
        """The part of `seconds` in which the thread did not compute."""

    def wall(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds + self.late

    def thread_time(self) -> float:
        return self.seconds - self.blocked

    def clock(self) -> Clock:
        return Clock(self.wall, self.sleep, self.thread_time)
