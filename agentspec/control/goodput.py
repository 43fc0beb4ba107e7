"""The default controller: widths that promise the most tokens a second, by the estimates of the drafts at hand."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from agentspec.control.bias import EstimateBias
from agentspec.control.columns import (
    candidate_widths,
    column_sizes,
    column_sums,
    cut_first,
    num_drafted,
    ranked_columns,
    ranked_first,
    ranked_sizes,
)
from agentspec.control.config import ControlConfig
from agentspec.control.drafting import DraftPauses
from agentspec.control.look_ahead import LookAhead
from agentspec.control.online import OnlineCosts
from agentspec.control.plan import Reason, StepPlan, StepState
from agentspec.control.probes import Probes
from agentspec.control.profile import Profile

_FORGETTING = 0.99
"""What a step counts in the mean speedup after the next one."""
_LEAST_SECONDS = 1e-9
"""A step takes some time, whatever was fitted."""
_LEAST_ESTIMATE = 1e-12
_LUCK = 1.5
"""Standard deviations."""


class GoodputController:
    """Maximises expected accepted and bonus tokens a second (goodput, SmartSpec, equation 3).

    1. The estimates are corrected by what became of earlier ones.
    2. A step of b rows and width w takes T(N_context, b * w), padding included, and what every step takes besides. What
       fits in costs nothing more, so that of every row as many nodes are kept as the width has room for, and a width
       promises b and the sum of the first w - 1 columns of estimates: the batch's nodes, column after column, as long
       as they are worth their cost. Where rows need not be padded, columns are ranked: a row that repeats gets the nodes
       that others have no use for.
    3. Of the widths at hand, 1 among them, the one is taken that promises the most tokens beyond what its seconds are
       worth: what they bring in the run so far, or, by the objective "step", what they bring at best in this step,
       which then has the most tokens a second. The most tokens over the run come of the former: a step with good
       drafts should be wider than its own tokens a second say, because seconds are worth less elsewhere.
       By the objective "ahead", the default, tokens that a width leaves to later steps count as well (`LookAhead`).
       A model drafter's passes, one a column, are seconds like others (equation 4).
    4. The last width is only left for one that promises clearly more, or does so for some steps.
    5. Now and then another width is tried, since only what is verified teaches anything of costs and estimates.
    """

    name = "goodput"

    def __init__(self, config: ControlConfig, profile: Profile | None) -> None:
        self.config = config
        self.costs = OnlineCosts(profile)
        self.bias = EstimateBias()
        """Of the estimates."""
        self._drafter = profile.drafter if profile is not None else None
        self._pauses = DraftPauses(self._drafter)
        self._probes = Probes(config.probe_share, known=profile is not None)
        self._speedup = _Speedup()
        self._look_ahead = LookAhead()
        self._width = 1
        self._against = 0

    def plan(self, state: StepState) -> StepPlan:
        drafts, rows = state.drafts, len(state.drafts)
        widths = candidate_widths(state.widths, state.max_width)
        counts = num_drafted(drafts)
        most = int(widths[-1]) - 1
        columns = ranked_columns(drafts) if state.ragged else None
        sizes = column_sizes(counts, most) if columns is None else ranked_sizes(int(counts.sum()), rows, most)
        estimates = column_sums(drafts, most, drafts.estimates, columns)
        gains = self.bias.corrected(estimates, sizes)
        promising = bool(gains.any())
        expected = rows + _up_to(gains, widths)
        cost = self.costs.cost
        seconds = max(cost.seconds(state.context, 0), _LEAST_SECONDS) + cost.gamma * rows * widths.astype(np.float64)
        taken = seconds + self._pass_seconds(state.context, rows) * (widths - 1) + state.rest
        worth, later = self._token_rate(expected, taken), np.zeros(len(widths))
        if self.config.objective == "ahead" and promising:
            cut = cut_first(drafts, gains / np.maximum(estimates, _LEAST_ESTIMATE), gains, columns)
            later, constant = self._look_ahead.later_tokens(gains, cut, rows, widths, taken)
            worth = min(worth, constant) if self._speedup.known else constant
        values = expected + later - worth * taken
        reason: Reason = "best"
        if self._pauses.skipped:
            choice, reason = 0, "paused"
        elif not promising:
            choice, reason = 0, "nothing-drafted"
        else:
            self._pauses.drafted(gains / rows)
            choice, reason = self._choose(widths, values, worth * taken)
            probed = self._probes.index(choice, (values[choice] - values) / (worth * taken[choice]))
            if probed is not None:
                choice, reason = probed, "probe"
        self._probes.next_step(plain=choice == 0)
        self._speedup.observe(float(expected[choice]), rows * float(taken[choice] / taken[0]))
        width = int(widths[choice])
        num_nodes = np.minimum(counts, np.int32(width - 1)) if columns is None else ranked_first(drafts, columns, width)
        return StepPlan(
            width=width,
            num_nodes=num_nodes,
            num_tokens=state.num_tokens(num_nodes, width),
            expected_tokens=float(expected[choice]),
            seconds=float(seconds[choice]),
            reason=reason,
            estimated=estimates[: width - 1],
            sizes=sizes[: width - 1],
            extrapolated=not self.costs.covers(rows, width, state.context),
        )

    def wants_draft(self, num_rows: int, context: int) -> bool:
        return self._pauses.wants_draft(self.costs.cost, num_rows, context)

    def observe(self, plan: StepPlan, num_accepted: NDArray[np.int32], seconds: float, *, context: int) -> None:
        surprises = self.costs.num_surprises
        self.costs.observe(context, plan.num_tokens, seconds)
        if self.costs.num_surprises > surprises:
            self._probes.renew()
        if plan.num_nodes.any():
            accepted = float(num_accepted.sum())
            self.bias.observe(plan.estimated, plan.sizes, accepted)
            if plan.reason == "probe" and _exceeds(accepted, plan):
                self._probes.succeeded()
                self._pauses.resume()
        else:
            self.bias.rest()

    def describe(self) -> dict[str, float | str | None]:
        return {
            "controller": self.name,
            "width": float(self._width),
            "bias": self.bias.exponent,
            "speedup": self._speedup.value if self._speedup.known else None,
            "probes": float(self._probes.num_probes),
            "paused_steps": float(self._pauses.num_paused),
            **self.costs.describe(),
        }

    def _pass_seconds(self, context: int, rows: int) -> float:
        """Of a model drafter's pass."""
        return self._drafter.drafting(context, rows, 1) if self._drafter is not None else 0.0

    def _token_rate(self, expected: NDArray[np.float64], seconds: NDArray[np.float64]) -> float:
        """Tokens that a second is worth: what it brings elsewhere, or at best in this step."""
        best = float((expected / seconds).max())
        if self.config.objective == "step" or not self._speedup.known:
            return best
        return self._speedup.value * float(expected[0] / seconds[0])

    def _choose(
        self, widths: NDArray[np.int64], values: NDArray[np.float64], prices: NDArray[np.float64]
    ) -> tuple[int, Reason]:
        """The index of the width to take: `values` is what each promises beyond its price, what its seconds are worth."""
        best = int(values.argmax())
        last = int(widths.searchsorted(self._width))
        if last < len(widths) and widths[last] == self._width and last != best:
            self._against += 1
            gain = values[best] - values[last]
            if self._against < self.config.patience and gain <= self.config.margin * prices[last]:
                return last, "held"
        self._against = 0
        self._width = int(widths[best])
        return best, "best"


class _Speedup:
    """Tokens promised over those that the same seconds would have brought without drafts, of the latest steps."""

    def __init__(self) -> None:
        self._tokens = self._plain_tokens = 0.0

    @property
    def known(self) -> bool:
        return self._plain_tokens > 0.0

    @property
    def value(self) -> float:
        """At least 1: that is always to be had."""
        return max(self._tokens / self._plain_tokens, 1.0)

    def observe(self, tokens: float, plain_tokens: float) -> None:
        self._tokens = _FORGETTING * self._tokens + tokens
        self._plain_tokens = _FORGETTING * self._plain_tokens + plain_tokens


def _exceeds(accepted: float, plan: StepPlan) -> bool:
    """Whether so many accepted nodes are more than luck makes of what was expected."""
    nodes, expected = int(plan.num_nodes.sum()), plan.expected_tokens - len(plan.num_nodes)
    return accepted > expected + _LUCK * math.sqrt(max(expected * (1.0 - expected / nodes), 0.0)) + 0.5


def _up_to(gains: NDArray[np.float64], widths: NDArray[np.int64]) -> NDArray[np.float64]:
    """[len(widths)], what a row's first w - 1 nodes bring, over the batch."""
    sums = np.zeros(len(gains) + 1)
    gains.cumsum(out=sums[1:])
    return sums[widths - 1]
