"""Pauses drafting after repeated failures. Pauses are counted in steps, so that all ranks decide alike."""

from __future__ import annotations

MAX_FAILURES = 10
"""Number of consecutive failures after which drafting pauses."""


class Breaker:
    """While it is closed, drafting runs. When it opens, drafting is skipped for `pause_steps` steps; then one step
    tries again.

    Invariant: it is open exactly while `_remaining > 0`.
    """

    def __init__(self, max_failures: int = MAX_FAILURES, pause_steps: int = 1000) -> None:
        self._max_failures = max_failures
        self._pause_steps = pause_steps
        self._failures = 0
        self._remaining = 0
        self.num_openings = 0

    @property
    def is_open(self) -> bool:
        return self._remaining > 0

    def allow(self) -> bool:
        """Whether this step may draft. Call it once in each step."""
        if self._remaining > 0:
            self._remaining -= 1
            return False
        return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        """Opens the breaker after `max_failures` consecutive failures, and at once if the step after a pause fails."""
        self._failures += 1
        if self._failures >= self._max_failures:
            self._remaining = self._pause_steps
            self.num_openings += 1
            # After the pause, one more failure opens it again.
            self._failures = self._max_failures - 1
