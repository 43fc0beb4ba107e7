"""Trying a drafter again that was given up."""

from __future__ import annotations

from collections.abc import Sequence

_FIRST_PAUSE = 8
_LONGEST_PAUSE = 256
_TRIES = 4
"""Drafts of a probe: one alone is luck, and the drafter's state is up to date once it has caught up."""


class Probing:
    """Says when a row that gets no draft at all should try the model drafter, though it is not expected to pay.

    Of the steps in which some row gets no draft and the drafter is not run, the 8th begins a probe, then the 16th, and
    so on with pauses doubled up to 256. They are counted over the server, not by row. As soon as the drafter runs
    because it pays, pauses are short again.
    """

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE
        self._waited = 0
        self._tries = 0
        self._request_id = ""

    def succeeded(self) -> None:
        """The drafter runs because it pays."""
        self._pause = _FIRST_PAUSE
        self._waited = self._tries = 0

    def next_row(self, request_ids: Sequence[str], rows: Sequence[int], pending: Sequence[int]) -> int | None:
        """Counts a step without the drafter; returns one of `rows`, which would get no draft, to try it on, or None.

        A probe stays with its request as long as it can; another begins where there is least to catch up on.
        """
        if not rows:
            return None
        if not self._tries:
            self._waited += 1
            if self._waited < self._pause:
                return None
            self._waited = 0
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._tries = _TRIES
        self._tries -= 1
        row = next((i for i in rows if request_ids[i] == self._request_id), None)
        if row is None:
            row = min(rows, key=lambda i: pending[i])
        self._request_id = request_ids[row]
        return row
