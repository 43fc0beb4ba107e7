"""SmartSpec: the length of the whole step, by goodput and a moving average of acceptance (algorithms 1 to 3)."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentspec.drafts import DraftBatch
from agentspec.scheduling.baselines.depths import DepthProfile, absolute_parents
from agentspec.scheduling.columns import (
    candidate_widths,
    column_sizes,
    column_sums,
    num_drafted,
    rows_between,
)
from agentspec.scheduling.config import ControlConfig
from agentspec.scheduling.costs.online import OnlineCosts
from agentspec.scheduling.costs.profile import Profile
from agentspec.scheduling.plan import StepPlan, StepState

_DEPTHS = 64
"""Depths that are told apart; what is deeper is as the last of them."""
_RENEWAL = 0.05
_SAMPLED = 16


def chain_tokens(acceptance: float, length: int) -> float:
    """Tokens generated of a chain of `length` tokens, the bonus token included (equation 8)."""
    return length + 1.0 if acceptance == 1.0 else (1.0 - acceptance ** (length + 1)) / (1.0 - acceptance)


def tree_tokens(acceptances: ArrayLike, branches: ArrayLike) -> float:
    """Tokens generated of a tree, the bonus token included: depth i has branches[i] candidates below each node, of
    which each is right with acceptances[i], whatever the others are (equation 10).

    The sum over i of (i + 1) P(just i tokens are accepted), as the mean of a count: the sum over i of P(at least i).
    Equation 10 as printed lacks the term of no token accepted, which generates one, and has 1 - alpha for the
    probability that all of the next depth's candidates are wrong, (1 - alpha)^k.
    """
    some = 1.0 - (1.0 - np.asarray(acceptances, np.float64)) ** np.asarray(branches, np.float64)
    return 1.0 + float(some.cumprod().sum())


class SmartSpecController:
    """Takes the width with the most (generated tokens) / seconds, as the acceptance of previous steps predicts it.

    Acceptance is counted over the last steps that verified anything: accepted tokens over tokens examined, of which the
    last is the one rejected. A row that has fewer nodes than the width has room for counts with those it has
    (equation 9). Seconds include those of a model drafter, a pass for each token of the length (equations 4 and 5).
    """

    name = "smartspec"

    def __init__(self, config: ControlConfig, profile: Profile | None) -> None:
        self.config = config
        self.costs = OnlineCosts(profile)
        self._drafter = profile.drafter if profile is not None else None
        self._accepted: deque[NDArray[np.int64]] = deque(maxlen=config.window)
        self._examined: deque[NDArray[np.int64]] = deque(maxlen=config.window)
        self._accepted_sum = np.zeros(_DEPTHS, np.int64)
        self._examined_sum = np.zeros(_DEPTHS, np.int64)
        self._widths = np.ones(1, np.int64)
        self._branches = np.ones(_DEPTHS)
        self._trees: DepthProfile | None = None
        self._next_sample = 0
        self._length = -1
        self._rest = 0.0

    @property
    def acceptance(self) -> float:
        """The moving average over all depths."""
        examined = int(self._examined_sum.sum())
        return int(self._accepted_sum.sum()) / examined if examined else self.config.acceptance

    def plan(self, state: StepState) -> StepPlan:
        drafts, rows, self._rest = state.drafts, len(state.drafts), state.rest
        widths = candidate_widths(state.widths, state.max_width)
        if self.config.length_model == "confidence":
            counts, estimates = _proposed(drafts, self.config.min_confidence)
            expected = _up_to(rows, column_sums(drafts, int(widths[-1]) - 1, estimates), widths)
        else:
            counts = num_drafted(drafts)
            expected = self._expected(drafts, counts, widths)
        choice = int(self._goodput(expected, rows, state.context, widths).argmax())
        width = int(widths[choice])
        self._length = width - 1
        self._widths = widths
        if self._trees is not None:
            branches = self._trees.branches[choice, :_DEPTHS]
            self._branches[: len(branches)] += _RENEWAL * (branches - self._branches[: len(branches)])
        num_nodes = np.minimum(counts, np.int32(width - 1))
        num_tokens = state.num_tokens(num_nodes, width)
        return StepPlan(
            width=width,
            num_nodes=num_nodes,
            num_tokens=num_tokens,
            expected_tokens=float(expected[choice]),
            seconds=self.costs.seconds(state.context, num_tokens),
            reason="best",
            extrapolated=not self.costs.covers(rows, width, state.context),
        )

    def wants_draft(self, num_rows: int, context: int) -> bool:
        """Where a model drafter proposes, it is run if rows that all propose alike should have some length; otherwise
        the length depends on what is found."""
        if self._drafter is None or len(self._widths) == 1 or not num_rows:
            return True
        counts = np.full(num_rows, self._widths[-1] - 1, np.int32)
        generated = self._chain(counts, self._widths)
        return int(self._goodput(generated, num_rows, context, self._widths).argmax()) > 0

    def observe(self, plan: StepPlan, num_accepted: NDArray[np.int32], seconds: float, *, context: int) -> None:
        self.costs.observe(context, plan.num_tokens, seconds)
        drafted = plan.num_nodes > 0
        if not drafted.any():
            return
        # Depth i was reached by the rows that accepted i tokens at least, and examined by those that had as many nodes.
        accepted = column_sizes(num_accepted[drafted], _DEPTHS)
        examined = column_sizes(np.minimum(num_accepted[drafted] + 1, plan.num_nodes[drafted]), _DEPTHS)
        for window, total, new in (
            (self._accepted, self._accepted_sum, accepted),
            (self._examined, self._examined_sum, examined),
        ):
            if len(window) == window.maxlen:
                total -= window[0]
            window.append(new)
            total += new

    def describe(self) -> dict[str, float | str | None]:
        return {
            "controller": self.name,
            "acceptance": self.acceptance,
            "length": float(self._length) if self._length >= 0 else None,
            **self.costs.describe(),
        }

    def _expected(
        self, drafts: DraftBatch, counts: NDArray[np.int32], widths: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """[len(widths)], accepted and bonus tokens over the batch."""
        if self.config.length_model == "chain":
            return self._chain(counts, widths)
        trees = self._trees = DepthProfile.of(self._sample(drafts), widths)
        return trees.expected(self._candidate_acceptances()) * (len(drafts) / max(trees.num_rows, 1))

    def _chain(self, counts: NDArray[np.int32], widths: NDArray[np.int64]) -> NDArray[np.float64]:
        most = int(widths[-1]) - 1
        gains = column_sizes(counts, most) * self.acceptance ** np.arange(1, most + 1)
        return _up_to(len(counts), gains, widths)

    def _sample(self, drafts: DraftBatch) -> DraftBatch:
        """At most _SAMPLED rows next to each other, others in each step: only means are asked for."""
        rows = len(drafts)
        if rows <= _SAMPLED:
            return drafts
        self._next_sample = (self._next_sample + _SAMPLED) % rows
        first = min(self._next_sample, rows - _SAMPLED)
        return rows_between(drafts, first, first + _SAMPLED)

    def _candidate_acceptances(self) -> NDArray[np.float64]:
        """[_DEPTHS], of one candidate: what makes the depth's own rate with as many as were verified, the mean."""
        # Where little is known, it is that of all depths.
        some = (self._accepted_sum + self.acceptance) / (self._examined_sum + 1.0)
        found: NDArray[np.float64] = 1.0 - (1.0 - some) ** (1.0 / self._branches)
        return found

    def _goodput(
        self, expected: NDArray[np.float64], rows: int, context: int, widths: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        cost = self.costs.cost
        seconds = cost.seconds(context, 0) + cost.gamma * rows * widths + self._rest
        if self._drafter is not None:
            seconds = seconds + self._drafter.drafting(context, rows, 1) * (widths - 1)
        return expected / seconds


def _up_to(rows: int, gains: NDArray[np.float64], widths: NDArray[np.int64]) -> NDArray[np.float64]:
    generated: NDArray[np.float64] = rows + np.concatenate(([0.0], gains.cumsum()))[widths - 1]
    return generated


def _proposed(drafts: DraftBatch, least: float) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The part of a draft that a drafter proposes which goes on while its last token's confidence, its probability after
    its parent, is above `least` (algorithm 3): nodes of each row, [b], and estimates, [n], 0 for what is not proposed.
    """
    if not len(drafts):
        return num_drafted(drafts), drafts.estimates
    parents = absolute_parents(drafts)
    doubtful = drafts.estimates <= np.float32(least) * drafts.estimates.take(parents)
    doubtful[drafts.offsets[:-1]] = False
    # The first node of a row behind a doubtful one has it as its parent; the doubtful one itself is proposed.
    own = np.arange(len(parents), dtype=np.int32)
    ends = np.minimum.reduceat(np.where(doubtful.take(parents), own, np.int32(len(own))), drafts.offsets[:-1])
    ends = np.minimum(ends, drafts.offsets[1:]).astype(np.int32)
    kept = own < np.repeat(ends, np.diff(drafts.offsets))
    return ends - drafts.offsets[:-1] - np.int32(1), np.where(kept, drafts.estimates, np.float32(0))
