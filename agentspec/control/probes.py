"""Trying widths that are not expected to pay, at a bounded cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FIRST_PAUSE, _LONGEST_PAUSE = 8, 512
_FIRST_BUDGET = 4.0
"""Steps' worth that may be lost where nothing is known of costs: at first without a profile, and when it proves wrong."""
_MOST_BUDGET = 8.0


class Probes:
    """Says when to verify another width to learn what it brings.

    Plain steps teach nothing of drafts, and steps of one width nothing of what others cost. After some steps on one
    side, plain or not, a step goes to the other: first after 8, then after 16, and so on up to 512, unless the
    controller has changed sides by itself, or at once where one brings more than was expected. All others together lose
    at most a given share of the time.
    """

    def __init__(self, share: float, *, known: bool) -> None:
        """`share`: of the time; `known`: whether costs are known at first."""
        self.num_probes = 0
        self._share = share
        self._budget = 0.0 if known or share == 0.0 else _FIRST_BUDGET
        self._charge = 0.0
        self._since_renewal = _LONGEST_PAUSE
        self._plain = True
        self._pause = _FIRST_PAUSE
        # Steps on this side since the last probe; -1 in the step that is one.
        self._waited = 0

    def index(self, choice: int, losses: NDArray[np.float64]) -> int | None:
        """The index of the width to try instead of the chosen one, or None.

        Args:
            choice: Index of the width chosen; 0 is plain.
            losses: [widths], what each would lose against the chosen one, in steps' worth of time.
        """
        plain = choice == 0
        if plain != self._plain or self._waited < self._pause or len(losses) < 2:
            return None
        other = 1 + int(losses[1:].argmin()) if plain else 0
        if losses[other] > self._budget:
            return None
        self._charge = max(float(losses[other]), 0.0)
        self._budget -= self._charge
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._waited = -1
        self.num_probes += 1
        return other

    def succeeded(self) -> None:
        """The last probe brought more than it was expected to: it is not charged, and the next one need not wait."""
        self._budget += self._charge
        self._charge = 0.0
        self._pause = _FIRST_PAUSE
        self._waited = max(self._waited, _FIRST_PAUSE)

    def renew(self) -> None:
        """Costs are not what they seemed: the next probes need not wait. At most every so many steps."""
        if self._since_renewal < _LONGEST_PAUSE:
            return
        self._since_renewal = 0
        self._budget = max(self._budget, _FIRST_BUDGET if self._share > 0.0 else 0.0)
        self._pause, self._waited = _FIRST_PAUSE, max(self._waited, _FIRST_PAUSE)

    def next_step(self, *, plain: bool) -> None:
        """Counts a step; `plain`: whether its width is 1."""
        self._since_renewal += 1
        self._budget = min(self._budget + self._share, _MOST_BUDGET)
        if self._waited < 0 or plain == self._plain:
            self._waited += 1
            return
        self._plain = plain
        self._pause, self._waited = _FIRST_PAUSE, 1
