"""Trying a draft model again that was given up."""

from __future__ import annotations

_FIRST_PAUSE = 8
_LONGEST_PAUSE = 256
_TRIES = 4
"""Steps of a probe: one alone is luck."""


class Probing:
    """Says in which steps the draft model should be tried, though it is not expected to pay.

    Of the steps in which a row gets no draft at all, the 8th begins a probe, then the 16th behind it, and so on with
    pauses doubled up to 256. As soon as the draft model runs because it pays, pauses are short again.
    """

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE
        self._waited = 0
        self._tries = 0

    def restart(self) -> None:
        """The draft model runs because it pays, or has come back after a long time: pauses are short again."""
        self._pause = _FIRST_PAUSE
        self._waited = self._tries = 0

    def next_step(self) -> bool:
        """Counts a step in which a row gets no draft; returns whether to try the draft model in it."""
        if not self._tries:
            self._waited += 1
            if self._waited < self._pause:
                return False
            self._waited = 0
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._tries = _TRIES
        self._tries -= 1
        return True
