"""For which rows of a step the model drafter is worth its time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.policy.costs import StepCosts

_MAX_ROUNDS = 32


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of the step that is decided on."""

    verify: float
    """Verification where the drafter is not run, and what every step takes besides."""
    verify_model: float
    """The same where it is: its draft may be wider."""
    draft: float
    draft_row: float
    """Drafting, and each row besides."""
    catch_up: float
    catch_up_token: float
    """Catching up, which every draft but the first after a prompt begins with, and each token besides; of these as
    much as is charged to this step."""

    @staticmethod
    def of(costs: StepCosts, rows: int, width: int, model_width: int, catch_up_steps: int) -> Times:
        draft, draft_row = costs.draft_line
        catch_up, catch_up_token = costs.catch_up_line
        return Times(
            verify=costs.verify(rows, width) + costs.rest,
            verify_model=costs.verify(rows, model_width) + costs.rest,
            draft=draft,
            draft_row=draft_row,
            catch_up=catch_up,
            catch_up_token=catch_up_token / catch_up_steps,
        )

    def break_even(self, model: float, rows: int, *, behind: bool, margin: float = 0.0) -> float:
        """tau: what suffix drafts must promise so that the drafter is not run, if all rows were alike.

        From (1 + tau) / T_verify = (1 + model) / (1 + margin) / (T_verify + T_draft + T_catch_up), the last where rows
        are `behind`.
        """
        seconds = self.verify_model + self.draft + self.draft_row * rows + self.catch_up * behind
        return max((1.0 + model) * self.verify / (seconds * (1.0 + margin)) - 1.0, 0.0)


def _discounted(model: NDArray[np.float64], margin: float) -> NDArray[np.float64]:
    return (1.0 + model) / (1.0 + margin) - 1.0


def saving(suffix: NDArray[np.float64], model: NDArray[np.float64], times: Times, margin: float = 0.0) -> float:
    """Seconds that model drafts save in a step in which the drafter could run for all rows, against suffix drafts alone.

    Arguments are those of `rows_worth_drafting`. Tokens are worth the seconds that they take without the drafter.
    """
    rows = rows_worth_drafting(
        suffix, model, np.ones(len(suffix), np.int32), np.ones(len(suffix), np.bool_), times, margin
    )
    if not rows.any():
        return 0.0
    total = len(suffix) + float(suffix.sum())
    gained = float((_discounted(model, margin) - suffix)[rows].sum())
    seconds = times.verify_model + times.draft + times.catch_up + times.draft_row * int(rows.sum())
    return max((total + gained) / total * times.verify - seconds, 0.0)


def rows_worth_drafting(
    suffix: NDArray[np.float64],
    model: NDArray[np.float64],
    pending: NDArray[np.int32],
    fit: NDArray[np.bool_],
    times: Times,
    margin: float = 0.0,
) -> NDArray[np.bool_]:
    """The set W of rows that maximises the step's goodput, accepted and bonus tokens a second:

        sum of 1 + (model[i] if i in W else suffix[i])
        ─────────────────────────────────────────────────────────────────────
        T_verify, and for W not empty T_draft(|W|) + T_catch_up(pending of W)

    A ratio of sums over rows, but for the parts that any row at all adds. With those taken as paid, the best set for
    a goodput g is that of the rows whose gain exceeds g times their seconds; its goodput is the next g, which rises to
    the best one (Dinkelbach). Catching up has such a part of its own, so that sets with and without it are compared.

    Args:
        suffix: [b], expected accepted tokens of the suffix drafts.
        model: [b], those of the model drafter.
        pending: [b], tokens to catch up on.
        fit: [b], rows that may be chosen.
        times: Of the step.
        margin: A row's model draft, with the bonus token, must promise that share more than it takes to be chosen. Of
            two uncertain promises the larger one disappoints, and the drafter's time is certain.
    """
    none: NDArray[np.bool_] = np.zeros(len(suffix), np.bool_)
    gains = _discounted(model, margin) - suffix
    allowed = fit & (gains > 0)
    if not allowed.any():
        return none
    total = len(suffix) + float(suffix.sum())
    seconds = times.draft_row + times.catch_up_token * pending
    best, goodput = none, total / times.verify
    fixed = times.verify_model + times.draft
    up_to_date = allowed & (pending == 0)
    for candidates, paid in ((up_to_date, fixed), (allowed, fixed + times.catch_up)):
        rate, chosen = total / paid, none
        for _ in range(_MAX_ROUNDS):
            rows = candidates & (gains > rate * seconds)
            found = (total + float(gains[rows].sum())) / (paid + float(seconds[rows].sum()))
            if not rows.any() or found <= rate:
                break
            rate, chosen = found, rows
        if rate > goodput and chosen.any():
            best, goodput = chosen, rate
    return best
