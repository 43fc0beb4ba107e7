"""How a server uses its draft model: whether it reads the texts, for which rows it can draft, whether its passes run, and
what is learnt of it.

What a step does with it was planned by an earlier step, where steps run in stream order (stream_order/steps.py):

    plan ─> AheadPlan ─> launch ─> the passes run or not, the device unites both drafts ─> observe, learn

Steps that wait for their suffix drafts take reads_next(), fit(), numbers() and choose() alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from agentspec._core import Rows
from agentspec.drafts import DraftBatch
from agentspec.integrations.sglang.kernels import tree_union
from agentspec.integrations.sglang.kernels.tree_union import UnionLimits
from agentspec.integrations.sglang.sglang_types import Req
from agentspec.integrations.sglang.stream_order.steps import AheadStep, StreamOrder
from agentspec.integrations.sglang.widths.control import WidthControl
from agentspec.scheduling.hybrid import (
    Choice,
    HybridPolicy,
    ModelNumbers,
    NextStep,
    PauseRule,
    UnitedTrees,
    num_passes,
    single_precision,
)

_TIMED_AT_FIRST, _TIMED_EVERY = 64, 4
"""Number of steps in which the draft model is always timed, and how often one is after these: timing takes the host's
time."""


@dataclass(frozen=True, slots=True)
class AheadPlan:
    """What all ranks do in a step in stream order."""

    follows: bool
    """Whether the draft model reads the tokens that this step accepts, and prompts from now on."""
    passes: bool
    """Whether the draft model's passes run."""
    width: int
    most_context: int
    """Upper bound on the number of tokens in the KV cache, summed over all rows."""


class ModelUse:
    """Owned by the worker of the rank that drafts, on the scheduler's thread."""

    def __init__(
        self,
        policy: HybridPolicy,
        control: WidthControl,
        pause: PauseRule,
        *,
        passes: int,
        max_width: int,
        max_position: int,
    ) -> None:
        """
        Args:
            passes: The most passes of the draft model, and tokens of a path that it drafts; see num_passes().
            max_width: The most tokens of a row that a step verifies.
            max_position: The last position that the draft model knows.
        """
        self.policy = policy
        self.pause = pause
        self.follows = policy.config.tau != 0
        """Whether the draft model reads accepted tokens and prompts."""
        self.longest = 0
        """Upper bound on the tokens in the KV cache of any row of the latest batch, before its latest step."""
        self.width = 1
        """Of the latest step."""
        self._control = control
        self._passes, self._max_width, self._max_position = passes, max_width, max_position
        # Unfinished requests with tokens that the draft model has not read.
        self._unread: WeakSet[Req] = WeakSet()
        self._num_read = 0

    def prefilled(self, requests: Sequence[Req], ends: Sequence[int], num_read: int) -> None:
        """Called after a prefill of `num_read` tokens of prompts was launched. `ends`: tokens of each row in the KV cache
        after it."""
        if not self.follows:
            self._unread.update(requests)
        self.pause.observe_prompts(self.policy.costs.read(num_read))
        self.longest = max(self.longest, *ends)

    def reads_next(self, requests: Sequence[Req]) -> bool:
        """Decides whether the draft model reads what the next step of these requests accepts. If not, it cannot draft for
        them any more. It does not read while it is paused, or when its padding would reach positions past the context."""
        tau = self.policy.config.tau
        is_awake = bool(tau != 0) if tau in (0, math.inf) else not self.pause.is_paused
        reads = bool(is_awake and self.longest + self._max_width - 1 <= self._max_position)
        if not reads:
            self._unread.update(requests)
        return reads

    def times_next(self) -> bool:
        """Whether to time the draft model in the next step, if that is in stream order."""
        self._num_read += self.follows
        return self._num_read <= _TIMED_AT_FIRST or self._num_read % _TIMED_EVERY == 0

    def fit(self, requests: Sequence[Req], barred: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
        """bool[b], the rows that the draft model can draft for.

        The passes run for all rows, so no row may need positions that the draft model does not know.

        `barred`: bool[b], rows that must not have drafts; None: there are none.
        """
        if not self.follows or self.longest + self._passes > self._max_position:
            return np.zeros(len(requests), np.bool_)
        fit = np.ones(len(requests), np.bool_) if barred is None else ~barred
        if self._unread:
            fit &= np.array([request not in self._unread for request in requests])
        return fit

    def numbers(
        self,
        rids: Sequence[str],
        contexts: NDArray[np.int64],
        fit: NDArray[np.bool_],
        widths: NDArray[np.int64],
        seconds: NDArray[np.float64],
    ) -> ModelNumbers:
        """What a plan must know of the draft model. Begins a step of the policy.

        Args:
            rids: [b]
            contexts: int64[b], number of tokens of each text, roughly.
            fit: bool[b], what fit() gave.
            widths: int64[w], the widths that the step may have.
            seconds: float64[w], those of a verification of each.
        """
        costs, b, widest = self.policy.costs, len(rids), int(widths[-1])
        slope = 0.0
        if self.follows and widest > 1:
            slope = (costs.extend(b * widest) - costs.extend(b)) / (widest - 1)
        extend: NDArray[np.float64] = np.multiply(slope, widths - self.width, dtype=np.float64)
        tau = self.policy.config.tau
        # If the draft model is paused, the plan tells what it would save.
        fits = bool(np.count_nonzero(fit))
        return ModelNumbers(
            seconds=seconds + extend + costs.draft(b),
            extend=extend,
            promised=self.policy.promised(rids, contexts),
            fit=fit if fits else np.ones(b, np.bool_),
            passes=num_passes(b, self._passes),
            must_pass=tau == math.inf,
            cannot_pass=not fits,
            alone=tau == math.inf,
            trees=self.policy.config.trees,
        )

    def choose(
        self, suffix: DraftBatch, fit: NDArray[np.bool_], promised: NDArray[np.float64], plan: NextStep
    ) -> Choice:
        """HybridPolicy.choose() for a step that waits, as plan() decides about one in stream order."""
        plan = replace(plan, passes=plan.passes or self.pause.wants_drafts)
        return self.policy.choose(suffix, fit, promised, plan)

    def plan(
        self, order: StreamOrder, requests: list[Req], barred: NDArray[np.bool_] | None = None
    ) -> tuple[AheadPlan, NDArray[np.bool_]]:
        """Decides about a step in stream order. Returns the plan, and what fit() gave. `barred`: as in fit()."""
        context = order.bound(requests)
        self.longest = order.longest
        self.follows = self.reads_next(requests)
        plan, fit = order.plan(requests), self.fit(requests, barred)
        passes = self.policy.runs_passes(fit, plan is None or plan.passes or self.pause.wants_drafts)
        is_tried = passes and (plan is None or not plan.passes)
        width = order.width(len(requests), num_passes(len(requests), self._passes) + 1 if is_tried else 1)
        return AheadPlan(self.follows, passes, width, context), fit

    def launch(
        self,
        order: StreamOrder,
        requests: list[Req],
        rows: Rows,
        padding: NDArray[np.int64] | None,
        plan: AheadPlan,
        fit: NDArray[np.bool_],
        *,
        may_draft: bool,
        unites: bool,
    ) -> AheadStep:
        """Launches the suffix drafts of a step, by what plan() returned. Arguments and errors: StreamOrder.launch()."""
        return order.launch(
            requests,
            rows,
            padding,
            plan.most_context,
            plan.width,
            may_draft=may_draft,
            unites=unites,
            model=partial(self.numbers, [request.rid for request in requests], order.lengths, fit),
            extends=plan.follows,
        )

    def union_limits(self, width: int) -> UnionLimits:
        """What bounds the drafts that the device unites for a step of a width."""
        config, factor = self.policy.config, self.policy.calibration.factor
        return UnionLimits(width, single_precision(config.min_token_prob), single_precision(factor), config.trees)

    def observe(self, order: StreamOrder, done: AheadStep, num_accepted: Sequence[int]) -> None:
        """Learns whether the draft model pays. `num_accepted`: accepted tokens of each row, bonus tokens not counted."""
        assert done.model is not None
        extend = self._extend_costs(done)
        order.observe(done, num_accepted, extend if done.planned.extend_launch else 0.0)
        fit = int(np.count_nonzero(done.model.fit))
        self.pause.observe_step(
            done.next.saved,
            fit if done.unites else 0,
            extend,
            rows=len(done.requests),
            ready=0 if done.model.cannot_pass else fit,
        )

    def _extend_costs(self, done: AheadStep) -> float:
        """Seconds by which a step is longer if the draft model reads the accepted tokens, on the device or the host."""
        control, passes = self._control, done.unites
        device = self.policy.costs.extend(len(done.requests) * done.width)
        without = done.predicted_seconds + done.planned.drafter_seconds
        if done.planned.extend_launch:
            # Then it is a part of the rest.
            without -= device
        return control.whole(without + device, passes=passes, extends=True) - control.whole(
            without, passes=passes, extends=False
        )

    def united(self, done: AheadStep) -> UnitedTrees:
        """What the device reported of a step whose drafts it united."""
        assert done.read is not None
        return tree_union.unpack(done.read.wait()[:, 1 + done.width : -1])

    def learn(self, done: AheadStep, united: UnitedTrees) -> None:
        """Learns how good both kinds of drafts were in a step, from what united() returned."""
        assert done.read is not None and done.model is not None
        found, rids = done.read.wait(), [request.rid for request in done.requests]
        counts, accepted = (found[:, 0] - 1).astype(np.int32), found[:, 1 : 1 + done.width]
        self.policy.observe_union(rids, done.model.fit & (done.ends >= 0), united, counts, accepted, done.ends)
        estimated, sizes = np.zeros(done.width - 1), np.zeros(done.width - 1, np.int64)
        self._control.observe_suffixes(estimated, sizes, done.native.suffixes_followed(found, estimated, sizes))
