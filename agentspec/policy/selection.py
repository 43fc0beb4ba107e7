"""Whether the passes of the draft model pay in a step. They run for all rows of a batch, or for none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.policy.costs import StepCosts


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of the step that is decided on."""

    plain: float
    """With suffix drafts alone."""
    drafted: float
    """With the draft model's passes, whose drafts may be wider."""

    @staticmethod
    def of(costs: StepCosts, rows: int, width: int, model_width: int) -> StepTimes:
        """Of `rows` rows of `width` tokens each, or of `model_width` where the passes run."""
        # What following the text takes is part of the rest, but for what a wider step adds to it.
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


def seconds_saved(
    suffix: NDArray[np.float64],
    model: NDArray[np.float64],
    fit: NDArray[np.bool_] | None,
    times: StepTimes,
    margin: float,
) -> float:
    """Seconds that the draft model's passes save in a step; negative where they cost more than they bring.

    With and without them the goodput of a step, accepted and bonus tokens a second, is

        sum of 1 + max(suffix[i], model[i], the latter for rows that are fit)      sum of 1 + suffix[i]
        ─────────────────────────────────────────────────────────────────────      ────────────────────
                                  T_drafted                                               T_plain

    The passes save time where the first is larger. They save T_plain for as many tokens as suffix drafts alone bring.

    Args:
        suffix: [b], expected accepted tokens of the suffix drafts.
        model: [b], those of the draft model.
        fit: [b], rows that have a state of the draft model; None: all.
        times: Of the step.
        margin: The draft model's promises, with the bonus token, are taken to be that share too large. Of two uncertain
            promises the larger one disappoints, and the time of the passes is certain.
    """
    gains = np.maximum((1.0 + model) / (1.0 + margin) - 1.0 - suffix, 0.0)
    gained = float(gains.sum() if fit is None else gains[fit].sum())
    total = len(suffix) + float(suffix.sum())
    return (total + gained) / total * times.plain - times.drafted
