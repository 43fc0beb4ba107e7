"""Decides whether the draft model's passes pay in a step. They run for all rows of a batch or for none.

A draft model that did not pay is tried again after pauses that grow.
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
    """Seconds with suffix drafts alone."""
    drafted: float
    """Seconds with the draft model's passes, whose drafts may be wider."""

    @staticmethod
    def of(costs: StepCosts, rows: int, width: int, model_width: int) -> StepTimes:
        """Predicts a step of `rows` rows, each `width` tokens wide, or `model_width` tokens if the passes run."""
        # The rest already includes extending the draft model's KV cache, except for what a wider step adds.
        wider = costs.extend(rows * model_width) - costs.extend(rows * width)
        return StepTimes(
            plain=costs.verify(rows, width) + costs.rest,
            drafted=costs.verify(rows, model_width) + wider + costs.rest + costs.draft(rows),
        )

    def break_even(self, model: float, margin: float) -> float:
        """Returns tau: the promise of suffix drafts above which the passes do not pay, assuming that all rows are
        alike.

        It solves (1 + tau) / T_plain = (1 + model) / (1 + margin) / T_drafted.
        """
        return max((1.0 + model) / (1.0 + margin) * self.plain / self.drafted - 1.0, 0.0)


class Promises(NamedTuple):
    """Accepted tokens that both drafters promise, summed over the rows of a step. Bonus tokens are not counted.

    A row is fit if the draft model has a state of it. The goodput of a step, in accepted and bonus tokens per second,
    is the left fraction with the draft model's passes and the right one without them:

        sum of 1 + max(suffix[i], model[i] if row i is fit)      sum of 1 + suffix[i]
        ───────────────────────────────────────────────────      ────────────────────
                             T_drafted                                  T_plain

    The passes save time if the left fraction is larger.
    """

    rows: int
    suffix: float
    """Promise of the suffix drafts."""
    gained: float
    """What the draft model would add to it if all rows were fit."""
    gained_fit: float
    """What the draft model adds to it in the fit rows."""
    better: float
    """The larger promise of each fit row, plus the suffix draft's promise of each other row."""
    model_fit: float
    """Promise of the draft model in the fit rows."""
    num_fit: int
    """Number of fit rows."""
    widest: int
    """Number of nodes of the largest suffix draft, its root included."""
    is_idle: bool
    """Whether some fit row has no suffix draft."""

    @staticmethod
    def of(
        offsets: NDArray[np.int32],
        suffix: NDArray[np.float64],
        model: NDArray[np.float64],
        fit: NDArray[np.bool_],
        margin: float,
    ) -> Promises:
        """Sums the promises of a batch of b rows.

        Args:
            offsets: int32[b + 1], offsets of the suffix drafts' nodes, roots included.
            suffix: float64[b], expected accepted tokens of the suffix drafts.
            model: float64[b], expected accepted tokens of the draft model.
            fit: bool[b], rows that have a state of the draft model.
            margin: See HybridConfig.margin.

        Raises:
            ConfigError: The arrays are not all of b rows.
        """
        return Promises(*_core.sum_promises(offsets, suffix, model, fit, margin))

    def saved(self, times: StepTimes, gained: float) -> float:
        """Seconds that the passes save in a step in which they add `gained` tokens; negative if they cost more time.

        The passes save the time that suffix drafts alone would need for as many tokens: `times.plain`, scaled up.
        """
        total = self.rows + self.suffix
        return (total + gained) / total * times.plain - times.drafted


class Probing:
    """Chooses the steps that try the draft model although it is not expected to pay.

    Only steps in which a row gets no draft count. The 8th of them starts a probe, then the 16th after that one, and so
    on. The pause doubles up to 256 steps, and is reset when the draft model runs because it pays.
    """

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE
        self._waited = 0
        self._tries = 0

    def restart(self) -> None:
        """Resets the pause, because the draft model pays again or is usable again after a long time."""
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
