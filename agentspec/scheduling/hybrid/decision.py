"""Decides whether the draft model's passes pay in a step. They run for all rows of a batch or for none.

A draft model that did not pay is tried again, with growing pauses between the tries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec.scheduling.hybrid.costs import StepCosts

_FIRST_PAUSE = 8
_LONGEST_PAUSE = 256
_TRIES = 4
"""Number of steps in a probe; a single step would be too noisy."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Predicted seconds of the current step."""

    plain: float
    """With suffix drafts alone."""
    drafted: float
    """With the draft model's passes, whose drafts may be wider."""

    @staticmethod
    def of(costs: StepCosts, rows: int, width: int, model_width: int) -> StepTimes:
        """Of `rows` rows of `width` tokens each, or of `model_width` where the passes run."""
        # The rest already includes extending the draft model's KV cache, except for what a wider step adds.
        wider = costs.extend(rows * model_width) - costs.extend(rows * width)
        return StepTimes(
            plain=costs.verify(rows, width) + costs.rest,
            drafted=costs.verify(rows, model_width) + wider + costs.rest + costs.draft(rows),
        )

    def break_even(self, model: float, margin: float) -> float:
        """tau: what suffix drafts must promise so that the passes do not pay, if all rows were alike.

        From (1 + tau) / T_plain = (1 + model) / (1 + margin) / T_drafted.
        """
        return max((1.0 + model) / (1.0 + margin) * self.plain / self.drafted - 1.0, 0.0)


class Promises(NamedTuple):
    """Accepted tokens that both drafters promise, summed over the rows of a step; bonus tokens are not counted.

    With and without the draft model's passes the goodput of a step, accepted and bonus tokens a second, is

        sum of 1 + max(suffix[i], model[i], the latter for rows that are fit)      sum of 1 + suffix[i]
        ─────────────────────────────────────────────────────────────────────      ────────────────────
                                  T_drafted                                               T_plain

    The passes save time where the first is larger.
    """

    rows: int
    suffix: float
    """Of the suffix drafts."""
    gained: float
    """What the draft model adds, if all rows have a state of it."""
    gained_fit: float
    """What it adds in the rows that have one."""
    better: float
    """The larger promise of each row that has a state of the draft model, and the suffix draft's of the others."""
    model_fit: float
    """Of the draft model, in the rows that have a state of it."""
    num_fit: int
    """Number of rows that have a state of the draft model."""
    widest: int
    """Nodes of the largest suffix draft, its root included."""
    is_idle: bool
    """Whether a row that has a state of the draft model has no suffix draft."""

    @staticmethod
    def of(
        offsets: NDArray[np.int32],
        suffix: NDArray[np.float64],
        model: NDArray[np.float64],
        fit: NDArray[np.bool_],
        margin: float,
    ) -> Promises:
        """Of a batch of b rows.

        Args:
            offsets: int32[b + 1], of the suffix drafts' nodes, roots included.
            suffix: float64[b], expected accepted tokens of the suffix drafts.
            model: float64[b], those of the draft model.
            fit: bool[b], rows that have a state of the draft model.
            margin: The draft model's promises, with the bonus token, are taken to be that share too large. Of two
                uncertain promises the larger one disappoints, and the time of the passes is certain.

        Raises:
            ConfigError: The arrays are not all of b rows.
        """
        return Promises(*_core.sum_promises(offsets, suffix, model, fit, margin))

    def saved(self, times: StepTimes, gained: float) -> float:
        """Seconds that the passes save in a step where they bring `gained` tokens more; negative where they cost more than
        they bring. They save T_plain for as many tokens as suffix drafts alone bring."""
        total = self.rows + self.suffix
        return (total + gained) / total * times.plain - times.drafted


class Probing:
    """Chooses the steps that try the draft model although it is not expected to pay.

    Only steps in which a row gets no draft count. The 8th of them starts a probe, then the 16th after that one, and so
    on; the pause doubles up to 256. When the draft model runs because it pays, the pause is reset.
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
