"""SmartSpec: one length for the whole step, by goodput and a moving average of acceptance (algorithms 1 to 3)."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentspec.drafts import DraftBatch
from agentspec.scheduling.baselines.depths import DepthProfile, absolute_parents
from agentspec.scheduling.columns import candidate_widths, column_sizes, column_sums, num_drafted, rows_between
from agentspec.scheduling.config import ControlConfig
from agentspec.scheduling.costs.online import OnlineCosts
from agentspec.scheduling.costs.profile import Profile
from agentspec.scheduling.plan import Reason, StepPlan, StepState

_DEPTHS = 64
"""Number of depths that are told apart. Deeper nodes count as the last of them."""
_RENEWAL = 0.05
_SAMPLED = 16


def chain_tokens(acceptance: float, length: int) -> float:
    """Expected tokens that a chain of `length` tokens yields, the bonus token included (equation 8)."""
    return length + 1.0 if acceptance == 1.0 else (1.0 - acceptance ** (length + 1)) / (1.0 - acceptance)


def tree_tokens(acceptances: ArrayLike, branches: ArrayLike) -> float:
    """Expected tokens that a tree yields, the bonus token included (equation 10). At depth i each node has branches[i]
    candidates. Each candidate is right with probability acceptances[i], independently of the others.

    The sum over i of (i + 1) P(exactly i tokens are accepted) is computed as the sum over i of P(at least i). Equation
    10 as printed lacks the term for no accepted token, which yields one token, and has 1 - alpha where the probability
    that all k candidates of the next depth are wrong, (1 - alpha)^k, belongs.
    """
    some = 1.0 - (1.0 - np.asarray(acceptances, np.float64)) ** np.asarray(branches, np.float64)
    return 1.0 + float(some.cumprod().sum())


class SmartSpecController:
    """Takes the width with the most generated tokens per second, as the acceptance of previous steps predicts it.

    Acceptance is counted over the last steps that verified drafts: accepted tokens divided by examined tokens. The
    first rejected token of a row is its last examined one. A row with fewer nodes than the width has room for counts
    with the nodes it has (equation 9). Seconds include the draft model's, one pass for each token of the length
    (equations 4 and 5).

    While the best length is 0, nothing is learned of acceptance, and by the paper's algorithm it stays 0. So the
    shortest length is tried now and then, for `probe_share` of the time.
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
        self._plain_seconds = 0.0
        """Predicted seconds of the steps of length 0 since a draft was last verified."""

    @property
    def acceptance(self) -> float:
        """The moving average of acceptance over all depths."""
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
        reason: Reason = "best"
        if choice:
            self._plain_seconds = 0.0
        elif counts.any() and self._probe_is_due(rows, state.context, widths):
            choice, reason, self._plain_seconds = 1, "probe", 0.0
        else:
            self._plain_seconds += self.costs.seconds(state.context, rows) + self._rest
        width = int(widths[choice])
        self._length = width - 1
        self._widths = widths
        if self._trees is not None:
            branches = self._trees.branches[choice, :_DEPTHS]
            self._branches[: len(branches)] += _RENEWAL * (branches - self._branches[: len(branches)])
        num_nodes = np.minimum(counts, np.int32(width - 1))
        self.costs.note_step(rows, width, state.context)
        return StepPlan(
            width=width,
            num_nodes=num_nodes,
            expected_tokens=float(expected[choice]),
            seconds=self.costs.seconds(state.context, rows * width),
            reason=reason,
        )

    def observe(self, plan: StepPlan, num_accepted: NDArray[np.int32], seconds: float, *, context: int) -> None:
        self.costs.observe(context, plan.num_tokens, seconds)
        drafted = plan.num_nodes > 0
        if not drafted.any():
            return
        # A row accepted at depth i if it accepted at least i tokens. It examined depth i if it accepted at least i - 1
        # and has at least i nodes.
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

    def _probe_is_due(self, rows: int, context: int, widths: NDArray[np.int64]) -> bool:
        """Whether `probe_share` of the time without drafts pays for a step of the shortest length."""
        if len(widths) == 1 or not self.config.probe_share:
            return False
        probe = self.costs.seconds(context, rows * int(widths[1]))
        if self._drafter is not None:
            probe += self._drafter.drafting(context, rows, int(widths[1]) - 1)
        return probe <= self.config.probe_share * self._plain_seconds

    def _expected(
        self, drafts: DraftBatch, counts: NDArray[np.int32], widths: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """[len(widths)], expected accepted and bonus tokens over the batch."""
        if self.config.length_model == "chain":
            return self._chain(counts, widths)
        trees = self._trees = DepthProfile.of(self._sample(drafts), widths)
        return trees.expected(self._candidate_acceptances()) * (len(drafts) / max(trees.num_rows, 1))

    def _chain(self, counts: NDArray[np.int32], widths: NDArray[np.int64]) -> NDArray[np.float64]:
        most = int(widths[-1]) - 1
        gains = column_sizes(counts, most) * self.acceptance ** np.arange(1, most + 1)
        return _up_to(len(counts), gains, widths)

    def _sample(self, drafts: DraftBatch) -> DraftBatch:
        """At most _SAMPLED adjacent rows, different ones in each step. Only means are needed of them."""
        rows = len(drafts)
        if rows <= _SAMPLED:
            return drafts
        self._next_sample = (self._next_sample + _SAMPLED) % rows
        first = min(self._next_sample, rows - _SAMPLED)
        return rows_between(drafts, first, first + _SAMPLED)

    def _candidate_acceptances(self) -> NDArray[np.float64]:
        """[_DEPTHS], the acceptance of one candidate that gives a depth's observed rate with its mean number of
        verified candidates."""
        # A depth with few observations takes the rate of all depths.
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
    """The part of each draft up to the first token whose confidence, its probability after its parent, is at most
    `least` (algorithm 3).

    Returns:
        The number of proposed nodes of each row, [b], and the estimates, [n], 0 for nodes that are not proposed.
    """
    if not len(drafts):
        return num_drafted(drafts), drafts.estimates
    parents = absolute_parents(drafts)
    doubtful = drafts.estimates <= np.float32(least) * drafts.estimates.take(parents)
    doubtful[drafts.offsets[:-1]] = False
    # A row ends before the first node whose parent is doubtful. The doubtful node itself is proposed.
    own = np.arange(len(parents), dtype=np.int32)
    ends = np.minimum.reduceat(np.where(doubtful.take(parents), own, np.int32(len(own))), drafts.offsets[:-1])
    ends = np.minimum(ends, drafts.offsets[1:]).astype(np.int32)
    kept = own < np.repeat(ends, np.diff(drafts.offsets))
    return ends - drafts.offsets[:-1] - np.int32(1), np.where(kept, drafts.estimates, np.float32(0))
