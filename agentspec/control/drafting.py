"""Whether a step needs drafts at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentspec.control.costs import StepCost

_FIRST_PAUSE, _LONGEST_PAUSE = 8, 256
_FADING = 0.99
"""What a column's best gain keeps of its lead over the present one with each draft."""
_MARGIN = 0.02
"""Even the best drafts of late must fall that share short of plain decoding before a pause."""


class DraftPauses:
    """Leaves out drafts while even the best ones of late would not be verified.

    Whether they would is judged anew at each step, by its rows and context. In a pause a draft is asked for after 8
    steps, then after 16, and so on up to 256, to see whether drafts have become better.
    """

    def __init__(self, drafter: StepCost | None) -> None:
        """`drafter`: what a pass of a model drafter costs; None: drafting costs nothing that is known."""
        self.num_paused = 0
        self.skipped = False
        """The step at hand was not drafted for."""
        self._drafter = drafter
        self._best_gains = np.zeros(0)
        self._pause = _FIRST_PAUSE
        self._waited = 0

    def drafted(self, gains: NDArray[np.float64]) -> None:
        """Takes in a batch's drafts: accepted tokens a row that each column promises."""
        if len(self._best_gains) != len(gains):
            self._best_gains = gains.copy()
        else:
            np.maximum(gains, gains + _FADING * (self._best_gains - gains), out=self._best_gains)

    def resume(self) -> None:
        """Drafts bring more than was thought: the next step has them."""
        self._waited = self._pause

    def wants_draft(self, cost: StepCost, rows: int, context: int) -> bool:
        """Counts a step; see `Controller.wants_draft`."""
        self.skipped = False
        if not rows or not len(self._best_gains):
            return True
        widths = np.arange(2, len(self._best_gains) + 2)
        seconds = cost.seconds(context, 0) + cost.gamma * rows * widths
        if self._drafter is not None:
            seconds += self._drafter.drafting(context, rows, 1) * (widths - 1)
        promised = (1.0 + self._best_gains.cumsum()) * cost.seconds(context, rows) / seconds
        if promised.max() >= 1.0 - _MARGIN:
            self._pause, self._waited = _FIRST_PAUSE, 0
            return True
        self._waited += 1
        if self._waited > self._pause:
            self._pause, self._waited = min(2 * self._pause, _LONGEST_PAUSE), 0
            return True
        self.skipped = True
        self.num_paused += 1
        return False
