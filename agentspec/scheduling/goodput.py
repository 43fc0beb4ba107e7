"""The default controller. It takes the width that promises the most tokens per second, by the drafts' estimates."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec.scheduling.calibration import EstimateBias
from agentspec.scheduling.columns import candidate_widths, num_drafted
from agentspec.scheduling.config import ControlConfig, Objective
from agentspec.scheduling.costs.online import OnlineCosts
from agentspec.scheduling.costs.profile import Profile
from agentspec.scheduling.plan import Reason, StepPlan, StepState

_OBJECTIVES: dict[Objective, _core.Objective] = {
    "ahead": _core.Objective.AHEAD,
    "run": _core.Objective.RUN,
    "step": _core.Objective.STEP,
}
REASONS: tuple[Reason, ...] = ("best", "held", "probe", "nothing-drafted")
"""In the order of PlanReason in agentspec/native/goodput.h."""
_LUCK = 1.5
"""Standard deviations."""


class GoodputController:
    """Maximises expected accepted and bonus tokens per second (goodput, SmartSpec, equation 3).

    1. The estimates are corrected by the acceptance of earlier drafts.
    2. A step of b rows and width w takes T(N_context, b * w), padding included, and the constant time of every step. T is
       the curve of the steps that were seen (agentspec.scheduling.costs.step_curve).
       Nodes that fit into the width cost nothing more, so each row keeps as many nodes as the width has room for. A
       width promises b tokens and the sum of the first w - 1 columns of estimates: the controller takes the batch's
       nodes column after column, while they are worth their cost.
    3. The widths to choose from include 1. The controller takes the one that promises the most tokens beyond the worth
       of its seconds. A second is worth the tokens that it yields in the run so far. With the objective "step" it is
       worth the most that it can yield in this step, so that the step has the most tokens per second. The former
       yields more tokens over the run: a step with good drafts should be wider than its own rate suggests, because
       seconds yield less in other steps. With the objective "ahead", the default, tokens that a width leaves to later
       steps count as well. The passes of a draft model, one for each column, cost seconds too (equation 4).
    4. The controller leaves the last width only for one that promises clearly more, or more for several steps.
    5. It tries another width now and then, because only verification teaches costs and estimates.

    agentspec/native/goodput.h says how it looks ahead and when it tries widths.
    """

    name = "goodput"

    def __init__(self, config: ControlConfig, profile: Profile | None) -> None:
        self.config = config
        self.costs = OnlineCosts(profile)
        self.bias = EstimateBias()
        """The correction of the estimates."""
        self.bias_united = EstimateBias()
        """The same for unions with a draft model's drafts, whose estimates are made before those drafts are known."""
        # A step waits for plan(), and each numpy call takes a microsecond.
        self.native = native_goodput(config, profile)
        """Decides, and may be given to a DraftingStep, which then decides one step ahead."""

    def plan(self, state: StepState) -> StepPlan:
        drafts, costs = state.drafts, self.costs
        rows, context = len(drafts), state.context
        widths = candidate_widths(state.widths, state.max_width)
        seconds_of_widths = costs.at_widths(context, (widths * rows).astype(np.float64))
        columns = int(widths[-1]) - 1
        estimated, sizes = np.empty(columns), np.empty(columns, np.int64)
        width, expected_tokens, seconds, reason = self.native.plan(
            drafts.offsets, drafts.parents, drafts.estimates, widths, context, state.rest, seconds_of_widths,
            self.bias.exponent, estimated, sizes,
        )  # fmt: skip
        costs.note_step(rows, width, context)
        return StepPlan(
            width,
            np.minimum(num_drafted(drafts), np.int32(width - 1)),
            expected_tokens,
            seconds,
            REASONS[reason],
            estimated[: width - 1],
            sizes[: width - 1],
        )

    def observe(self, plan: StepPlan, num_accepted: NDArray[np.int32], seconds: float, *, context: int) -> None:
        surprises = self.costs.num_surprises
        self.costs.observe(context, plan.num_tokens, seconds)
        if self.costs.num_surprises > surprises:
            self.native.renew_probes()
        if np.count_nonzero(plan.num_nodes):
            accepted = float(np.add.reduce(num_accepted))
            bias = self.bias_united if plan.united else self.bias
            bias.observe(plan.estimated, plan.sizes, accepted)
            if plan.united:
                # Steps in stream order tell what suffix drafts alone are worth in unions (WidthControl.observe_suffixes).
                # Without them, suffix drafts that seem to be worth less than they are would let the draft model run for
                # ever. Where unions disappoint, the draft model may be the reason.
                self.bias.assume(min(self.bias_united.exponent, 1.0))
            if plan.reason == "probe" and _exceeds(accepted, plan):
                self.native.probe_succeeded()
        else:
            self.bias.rest()

    def describe(self) -> dict[str, float | str | None]:
        return {
            "controller": self.name,
            "width": float(self.native.width()),
            "bias": self.bias.exponent,
            "bias_united": self.bias_united.exponent,
            "speedup": self.native.speedup(),
            "probes": float(self.native.num_probes()),
            **self.costs.describe(),
        }


def native_goodput(config: ControlConfig, profile: Profile | None) -> _core.Goodput:
    """What decides on widths, with these settings and no history."""
    drafter = profile.drafter if profile is not None else None
    return _core.Goodput(
        objective=_OBJECTIVES[config.objective],
        margin=config.margin,
        patience=config.patience,
        probe_share=config.probe_share,
        knows_costs=profile is not None,
        drafter_alpha=drafter.alpha if drafter is not None else 0.0,
        drafter_gamma=drafter.gamma if drafter is not None else 0.0,
        drafter_delta=drafter.delta if drafter is not None else 0.0,
    )


def _exceeds(accepted: float, plan: StepPlan) -> bool:
    """Whether `accepted` exceeds the plan's expected number by more than chance explains."""
    nodes, expected = int(plan.num_nodes.sum()), plan.expected_tokens - len(plan.num_nodes)
    return accepted > expected + _LUCK * math.sqrt(max(expected * (1.0 - expected / nodes), 0.0)) + 0.5
