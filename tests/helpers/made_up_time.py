"""Time for tests of the emulated device: what is computed takes none, and sleeping takes what it should."""

from __future__ import annotations

from agentspec.integrations.emulated_device.device.clock import Clock


class MadeUpTime:
    """Seconds that pass only where somebody says so."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.late = 0.0
        """Seconds that a sleeper wakes up too late."""

    def wall(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds + self.late

    def clock(self) -> Clock:
        return Clock(self.wall, self.sleep)
