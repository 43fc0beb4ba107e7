"""Pauses drafting after repeated failures, counted in steps so that every rank decides alike."""

from __future__ import annotations


class Breaker:
    """Closed: drafting runs. Open: it is skipped for `pause_steps` steps, then one step tries again.

    Invariant: open exactly while `_remaining > 0`.
    """

    def __init__(self, max_failures: int, pause_steps: int = 1000) -> None:
        self._max_failures = max_failures
        self._pause_steps = pause_steps
        self._failures = 0
        self._remaining = 0
        self.num_openings = 0

    @property
    def is_open(self) -> bool:
        return self._remaining > 0

    def allow(self) -> bool:
        """Called once a step; says whether this step may draft."""
        if self._remaining > 0:
            self._remaining -= 1
            return False
        return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        """After `max_failures` in a row the breaker opens; the trial after a pause opens it again at once."""
        self._failures += 1
        if self._failures >= self._max_failures:
            self._remaining = self._pause_steps
            self.num_openings += 1
            # One more failure after the pause is enough.
            self._failures = self._max_failures - 1
