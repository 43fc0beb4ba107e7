"""The worker with a draft model: SGLang's EAGLE or STANDALONE worker, with suffix drafts added to each step.

Where the device runs functions of the host in the order of a stream, the scheduler's thread waits for nothing
(stream_order/steps.py). Suffix drafts are made while the device runs draft-extend and the draft model's passes, and the
device unites both trees. Whether the passes run, and how much is verified, was planned by an earlier step.

Elsewhere, and for batches with a grammar, one decode step has four parts. agentspec runs the first three, and SGLang's
worker runs the last:
  1. agentspec makes suffix drafts for every row while the device still runs the previous step's draft-extend
     (suffix_drafter.py).
  2. A plan decides whether the draft model's passes pay in this step. Often they do not
     (agentspec.scheduling.hybrid).
  3. The host waits for the draft model's trees and merges them with the suffix trees. The controller decides how much of
     the result is verified.
  4. SGLang verifies all rows in one forward and runs draft-extend over the accepted tokens of either drafter.

The root and the positions of each row's tree are read on the device from SGLang's own relay, so wrong numbers on the
host cannot change a token. A failure in parts 1 to 3 costs drafts and nothing else. With several ranks, the first rank
makes all decisions, tells them to the others, and gives them its trees.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2

import agentspec
from agentspec._core import Rows
from agentspec.drafts import DraftBatch, Source
from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.drafting.acceptance_head import find_acceptance_head
from agentspec.integrations.sglang.drafting.accepted_tokens import ReadBack
from agentspec.integrations.sglang.drafting.device_clock import DeviceClock
from agentspec.integrations.sglang.drafting.draft_model import (
    EagleTreeDrafting,
    LaunchedTrees,
    StandaloneTreeDrafting,
    TreeDrafting,
)
from agentspec.integrations.sglang.drafting.rows import DraftedStep
from agentspec.integrations.sglang.drafting.stop_rule import DraftStop, stop_threshold
from agentspec.integrations.sglang.drafting.suffix_drafter import SuffixDrafter, SuffixStep
from agentspec.integrations.sglang.drafting.verify_input import VerifyStaging, VerifyTensors
from agentspec.integrations.sglang.kernels import tree_union
from agentspec.integrations.sglang.kernels.accepted_path import compact_by_gathering
from agentspec.integrations.sglang.sglang_types import BatchResult, Req, ScheduleBatch, ServerArgs
from agentspec.integrations.sglang.stream_order.ranks import Ranks
from agentspec.integrations.sglang.stream_order.steps import AheadStep, StreamOrder
from agentspec.integrations.sglang.widths.control import PlannedStep
from agentspec.integrations.sglang.widths.tiers import WidthTiers
from agentspec.integrations.sglang.workers.model_use import AheadPlan, ModelUse
from agentspec.scheduling.hybrid import (
    Choice,
    HybridBatch,
    HybridPolicy,
    ModelCosts,
    NextStep,
    Speedup,
    StepPlanner,
    pause_rule,
)

logger = logging.getLogger("agentspec")


@dataclass(frozen=True, slots=True)
class _Order:
    """What all ranks do in a step: whether the passes run, and later, once their trees are known, what is verified."""

    follows: bool
    """Whether the draft model reads the tokens that this step accepts, and prompts from now on."""
    least_gain: float | None
    """Number of accepted tokens that one more pass must promise; None: the passes do not run."""
    built: NDArray[np.int64] | None = None
    """The trees to verify, for the other ranks, as from VerifyStaging.built(); None until the passes are done."""
    width: int = 0
    num_drafted: NDArray[np.int32] | None = None
    most_context: int = 0
    """Upper bound on the number of tokens in the KV cache, summed over all rows."""


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """A step in stream order on the first rank, before its launch."""

    ahead: AheadPlan
    rows: Rows
    padding: NDArray[np.int64] | None
    """As in SuffixStep."""
    fit: NDArray[np.bool_]
    """[b], the rows that the draft model can draft for."""


@dataclass(slots=True)
class _Step:
    """A step on the first rank, from its drafts until the scheduler has processed its result."""

    rids: list[str]
    suffix: SuffixStep
    choice: Choice
    drafts: DraftBatch
    """The drafts of both drafters, before the controller cuts them."""
    plan: NextStep | None = None
    """None if planning failed."""
    plain_seconds: float = 0.0
    """Predicted for a step without any drafts."""
    num_drafted: NDArray[np.int32] | None = None
    planned: PlannedStep | None = None
    drafted: DraftedStep | None = None
    read: ReadBack | None = None
    seconds: float = 0.0
    """Time spent on drafting."""


if TYPE_CHECKING:
    # The type checker sees one of SGLang's workers below the mixin, so that its attributes exist.
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2 as _Worker
else:
    _Worker = object


class _Hybrid(_Worker):  # type: ignore[misc]
    """Mixin for SGLang's workers with a draft model."""

    # SGLang's.
    topk: int
    speculative_num_steps: int
    speculative_num_draft_tokens: int

    # Made at the end of the start, because the attention backends determine the mask's layout, and because SGLang then
    # knows how many requests it runs at once.
    _staging: VerifyStaging

    def __init__(self, server_args: ServerArgs, *args: object, **kwargs: object) -> None:
        with compat.draft_workers(EagleTreeDrafting, StandaloneTreeDrafting):
            super().__init__(server_args, *args, **kwargs)
        compact_by_gathering()
        runner = self.target_worker.model_runner
        self.suffix = SuffixDrafter(server_args, runner, drafts_here=compat.tp_rank(self) == 0)
        self.settings, self.max_width = self.suffix.settings, self.suffix.max_width
        self.counters = self.suffix.counters
        if self.settings.profiling:
            compat.verify_padded(runner)
            config = runner.model_config
            self.suffix.control.measure_peaks(self.device, config.dtype, int(config.hidden_size))
        self._trees = self.suffix.config.mode == "tree"
        self._max_position = int(runner.model_config.context_len) - 1
        self._tp_group = compat.tensor_parallel_group()
        self._tiers = WidthTiers(runner, self._draft_worker)
        self._clock = DeviceClock(self.device)
        # The ranks that run steps in stream order together, and what launches the host's part on the first one.
        self._ranks: Ranks | None = None
        self._order: StreamOrder | None = None
        self._step: _Step | AheadStep | None = None
        # Tokens in the KV cache over all rows of the latest planned step.
        self._context = 0
        self._pending: deque[_Step | AheadStep] = deque()
        self.policy = HybridPolicy(
            self.settings.hybrid_config(trees=self._trees, max_nodes=self.max_width - 1),
            ModelCosts(self.suffix.profile),
        )
        self.suffix.drafter_cost = lambda: self.policy.costs.drafter
        # For steps that wait for their suffix drafts.
        self._planner = StepPlanner(self.suffix.control.goodput(), self.suffix.control.goodput())
        self._speedup = Speedup()
        self._use = ModelUse(
            self.policy,
            self.suffix.control,
            pause_rule(self.settings.draft_model_pause),
            passes=self._draft_worker.shape.steps,
            max_width=self.max_width,
            max_position=self._max_position,
        )
        self._set_up_draft_worker(self._draft_worker, compat.draft_model_path(server_args))
        if self.suffix.drafts_here:
            logger.info(
                "agentspec %s is active: %s drafts of up to %d tokens beside the draft model %s (%s, %d passes of %d%s), %s",
                agentspec.__version__,
                self.suffix.config.mode,
                self.max_width - 1,
                compat.draft_model_path(server_args),
                self.speculative_algorithm.name,
                self._draft_worker.shape.steps,
                self._draft_worker.shape.topk,
                ", with an acceptance head" if self._draft_worker.acceptance else "",
                self.settings.shown(),
            )

    def _set_up_draft_worker(self, worker: TreeDrafting, draft_model_path: str) -> None:
        worker.propose = self._propose
        worker.max_nodes = self.max_width - 1
        worker.acceptance = find_acceptance_head(self.settings.acceptance_head, draft_model_path, worker.draft_runner)
        worker.stop = DraftStop(stop_threshold(self.settings.stop_threshold, worker.acceptance, self.suffix.profile))
        worker.follows = self._use.follows
        worker.read_took = self.policy.costs.observe_read
        worker.extend_took = self.policy.costs.observe_extend
        metrics = self.suffix.state_metrics
        if metrics is not None:
            metrics.read("drafter_expected_tokens", lambda: self.policy.lengths.mean)
            metrics.read("drafter_paused", lambda: not worker.follows)

    def describe(self) -> dict[str, object]:
        """The block `agentspec` of `/server_info`."""
        worker = self._draft_worker
        return {
            "active": True,
            "settings": {**self.settings.shown(), "mode": self.suffix.config.mode},
            "num_draft_tokens": self.max_width,
            "width": "fixed" if self.suffix.control.is_fixed else "varying",
            "graphs": self._tiers.describe(),
            "padding_skipped": compat.padding_skipped(self.target_worker.model_runner),
            "drafter": {
                "base": self.speculative_algorithm.name,
                "steps": worker.shape.steps,
                "topk": worker.shape.topk,
                "acceptance_head": worker.acceptance is not None,
                "stop_threshold": "auto" if worker.stop.threshold is None else worker.stop.threshold,
                "paused": not worker.follows,
                "drafts_united_on": "host" if self._ranks is None else "device",
                **self.policy.describe(),
            },
            "stream_order": None if self._order is None else self._order.describe(),
            **self.suffix.describe(),
        }

    def init_cuda_graphs(self) -> None:
        """Called once, with or without graphs, at the end of the start: after SGLang has made the attention backends and
        captured the target's graphs of the greatest width."""
        super().init_cuda_graphs()
        self.suffix.capture(self._tiers)
        runner = self.target_worker.model_runner
        # Without graphs, the host launches each operation of the verification by itself, and has little to gain.
        may_unite = (
            self._tiers.has_graphs
            and self.policy.plans_ahead
            and self.max_width <= tree_union.MOST_WIDTH
            and tree_union.can_unite(torch.device(self.device))
        )
        self._staging = VerifyStaging(
            max_rows=len(runner.req_to_token_pool.req_to_token),
            max_width=self.max_width,
            max_position=self._max_position,
            full_mask=compat.wants_full_mask(runner.attn_backend),
            device=self.device,
            unites=may_unite,
        )
        self._order, self._ranks = self.suffix.in_stream_order(
            self._staging, runner, self.spec_v2_attn_backends, may=may_unite
        )

    def clear_cache_pool(self) -> None:
        """Called for `/flush_cache`: forgets finished outputs. Outputs in the store stay there."""
        self.suffix.clear()

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        del natural_stop
        self.suffix.finish(rid)
        self.policy.forget(rid)

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """Called once for each verify step, in order. With the overlap schedule, the next step is already launched."""
        del batch_size
        self.suffix.control.resumed()
        if self._pending:
            step = self._pending.popleft()
            observe = self._observe_ahead if isinstance(step, AheadStep) else self._observe
            self.suffix.later(observe, step, num_correct_drafts_per_req)

    def _observe(self, done: _Step, num_accepted: list[int]) -> None:
        assert done.planned is not None and done.read is not None
        self.suffix.control.observe(done.planned, num_accepted)
        found = done.read.wait()
        counts = (found[:, 0] - 1).astype(np.int32)
        assert done.drafted is not None
        self.suffix.accepted_of(done.suffix.requests, done.drafted, num_accepted)
        self.policy.observe(done.rids, done.drafts, counts, found[:, 1:-1], np.maximum(done.suffix.ends, 0))
        if done.plain_seconds and done.planned.plan is not None:
            seconds = self.suffix.control.rest + done.planned.plan.seconds
            if done.choice.rows.any():
                seconds += self.policy.costs.draft(len(done.rids))
            tokens = len(num_accepted) + sum(num_accepted)
            self._speedup.observe(tokens, len(num_accepted) * seconds / done.plain_seconds)
        if self.settings.profiling and isinstance(done.drafts, HybridBatch) and self._draft_worker.shape.topk == 1:
            self._tell_chains(done.drafts, counts, found[:, 1:-1])

    def _tell_chains(self, drafts: HybridBatch, counts: NDArray[np.int32], tokens: NDArray[np.int64]) -> None:
        accepted, _ = drafts.model_followed(np.ascontiguousarray(tokens), counts)
        rows = np.flatnonzero(drafts.ran)
        head = self._draft_worker.acceptance
        chains = []
        for row in rows:
            of_row = slice(drafts.model_offsets[row], drafts.model_offsets[row + 1])
            # Each estimate is the product along the path, and that of the root is 1.
            paths = drafts.model_estimates[of_row].astype(np.float64)
            chances = paths[1:] / np.maximum(paths[:-1], 1e-12)
            chains.append((chances if head is None else head.trained(chances)).tolist())
        self.suffix.control.chained(chains, accepted[rows].tolist())

    def _observe_ahead(self, done: AheadStep, num_accepted: list[int]) -> None:
        """_observe() for a step in stream order."""
        assert self._order is not None
        self._use.observe(self._order, done, num_accepted)
        learns = self.suffix.verified_ahead(done, num_accepted)
        if not done.unites:
            return
        united = self._use.united(done)
        sources = np.where(united.model_first, np.uint8(Source.MODEL), done.first_sources)
        sources[united.num_nodes == 0] = Source.ROOT
        drafted = DraftedStep(sources, united.num_nodes)
        drafted.count_drafted(self.counters)
        self.suffix.accepted_of(done.requests, drafted, num_accepted)
        if learns:
            self._use.learn(done, united)

    def forward_batch_generation(
        self, batch: ScheduleBatch, on_publish: object = None, **kwargs: object
    ) -> BatchResult:
        if self._tiers.are_outdated:
            self.suffix.capture(self._tiers)
        if batch.forward_mode.is_decode() and batch.reqs:
            self._step = None
            return self._decode(batch, on_publish, kwargs)
        self.suffix.control.interrupted(batch)
        requests = list(batch.reqs) if batch.forward_mode.is_extend() else []
        ends = [n + prefix for n, prefix in zip(batch.extend_lens, batch.prefix_lens, strict=True)] if requests else []
        num_read = sum(batch.extend_lens) if requests else 0
        result: BatchResult = super().forward_batch_generation(batch, on_publish=on_publish, **kwargs)
        if requests and self.suffix.drafts_here:
            self._use.prefilled(requests, ends, num_read)
            self.suffix.prefilled(requests, ends, result.next_token_ids)
        return result

    def _decode(self, batch: ScheduleBatch, on_publish: object, kwargs: dict[str, object]) -> BatchResult:
        """Runs SGLang's own step, which calls `_propose` for the trees to verify."""
        try:
            result: BatchResult = super().forward_batch_generation(batch, on_publish=on_publish, **kwargs)
        finally:
            self._use_width(self.max_width)
        step = self._step
        if isinstance(step, AheadStep):
            result.cap_lens = torch.from_numpy(step.num_nodes)
            self._pending.append(step)
            step.planned.extend_launch = self._draft_worker.extend_launch
            # The device has work by now.
            self.suffix.settle()
            self.suffix.control.launched()
        elif step is not None:
            result.cap_lens = torch.from_numpy(step.num_drafted)
            self.suffix.later(self._count, step)
            self._pending.append(step)
        return result

    def _propose(self, batch: ScheduleBatch) -> EagleVerifyInput:
        """Returns the input of the next verify step. It is the same on all ranks. `batch`: SGLang's `ScheduleBatch`, in
        decode mode."""
        # A grammar walks the tree on the host before the verification.
        if self._ranks is not None and not batch.has_grammar:
            prepared = self._prepared(list(batch.reqs))
            ahead = self._ranks.agreed(None if prepared is None else prepared.ahead)
            if ahead is not None:
                return self._proposed(batch, ahead.width, self._drafts_of(batch, ahead, prepared, self._ranks))
        if self._order is not None:
            self._order.interrupted()
        staging = self._staging
        order = self._agreed(self._ordered(batch) if self.suffix.drafts_here else None)
        self._follow(order.follows)
        if order.least_gain is not None:
            trees = self._launched_passes(batch, order.least_gain)
            if self.suffix.drafts_here:
                assert isinstance(self._step, _Step)
                order = self._united(order, trees, self._step)
            order = self._agreed(order)
        if not self.suffix.drafts_here:
            assert order.built is not None and order.num_drafted is not None
            staging.receive(order.built, order.width, order.num_drafted)
        # The tree mask is written to the memory that this width's graphs read.
        self._use_width(order.width)
        roots = batch.spec_info.bonus_tokens[:, None]
        return self._proposed(batch, order.width, staging.tensors(batch.seq_lens, roots, total=order.most_context))

    def _proposed(self, batch: ScheduleBatch, width: int, tensors: VerifyTensors) -> EagleVerifyInput:
        self._use.width = width
        backend = self.target_worker.model_runner.attn_backend
        return EagleVerifyInput(
            draft_token=tensors.tokens,
            custom_mask=compat.verify_mask(backend, tensors.mask, len(batch.reqs)),
            positions=tensors.positions,
            retrieve_index=tensors.retrieve_index,
            retrieve_next_token=tensors.next_token,
            retrieve_next_sibling=tensors.next_sibling,
            retrieve_cum_len=None,
            # An accepted path may use every node of its row.
            spec_steps=width - 1,
            topk=self._verify_topk,
            draft_token_num=width,
            capture_hidden_mode=None,
            seq_lens_sum=None,
            seq_lens_cpu=None,
        )

    def _prepared(self, requests: list[Req]) -> _Prepared | None:
        """Decides on the first rank about a step in stream order. None on other ranks, and if that failed; then the step
        waits for its drafts."""
        order = self._order
        if order is None:
            return None
        self.suffix.control.step_begins(requests)
        try:
            rows, padding = self.suffix.begin(requests)
            ahead, fit = self._use.plan(order, requests, self._barred(requests))
            self._context = ahead.most_context
            if not ahead.follows:
                self.counters.add("drafter_paused_steps", 1)
        except Exception:
            self.suffix.failed("agentspec could not plan a step in stream order; it waits for its drafts")
            return None
        return _Prepared(ahead, rows, padding, fit)

    def _launched(
        self, requests: list[Req], prepared: _Prepared, order: StreamOrder, trees: LaunchedTrees | None
    ) -> AheadStep | _Step:
        """Launches the suffix drafts of a step in stream order, and their union with the draft model's trees. On failure
        the step has roots only."""
        rids, ahead = [request.rid for request in requests], prepared.ahead
        try:
            step = self._use.launch(
                order,
                requests,
                prepared.rows,
                prepared.padding,
                ahead,
                prepared.fit,
                may_draft=self.suffix.may_draft_now,
                unites=trees is not None,
            )
        except Exception:
            self.suffix.failed("agentspec could not launch drafts in stream order; this step verifies roots only")
            return self._roots(requests, rids, ahead.width, order)
        order.join(step)
        if trees is not None:
            started = time.perf_counter()
            step.planned.drafter_seconds = self.policy.costs.draft(len(requests))
            step.report = self._staging.unite(trees.on_device, self._use.union_limits(ahead.width))
            step.planned.passes_launch = trees.seconds + time.perf_counter() - started
        return step

    def _roots(self, requests: list[Req], rids: list[str], width: int, order: StreamOrder) -> _Step:
        """A step of roots, padded to the width that all ranks expect."""
        b = len(requests)
        # What is put off reads memory that the next steps write.
        self.suffix.settle()
        order.interrupted()
        self.suffix.guarded(self.suffix.catch_up)
        suffix = self.suffix.nothing(requests)
        step = _Step(rids, suffix, Choice(np.zeros(b, np.bool_), 0.0), suffix.drafts)
        step.num_drafted, step.planned = self.suffix.control.plan_roots(b, suffix.context, width)
        self._staging.build(suffix.drafts, width, step.num_drafted)
        self._staging.copy_trees(b, width)
        return step

    def _drafts_of(
        self, batch: ScheduleBatch, ahead: AheadPlan, prepared: _Prepared | None, ranks: Ranks
    ) -> VerifyTensors:
        """Launches the drafts of a step in stream order. Returns the trees to verify, which the device makes of them."""
        requests, staging, width = list(batch.reqs), self._staging, ahead.width
        self._follow(ahead.follows)
        trees = self._launched_passes(batch, 0.0) if ahead.passes else None
        # The tree mask is written to the memory that this width's graphs read.
        self._use_width(width)
        if self._order is None or prepared is None:
            staging.ahead()
        else:
            self._step = self._launched(requests, prepared, self._order, trees)
        ranks.share(len(requests), width)
        roots = batch.spec_info.bonus_tokens[:, None]
        return staging.laid_out(len(requests), width, batch.seq_lens, roots, total=ahead.most_context)

    def _ordered(self, batch: ScheduleBatch) -> _Order:
        """Decides on the first rank whether the passes run. Without passes, the order also holds the trees to verify."""
        self.suffix.control.step_begins(list(batch.reqs))
        step: _Step = self._begun(batch)
        follows = self._use.reads_next(step.suffix.requests)
        if not follows:
            self.counters.add("drafter_paused_steps", 1)
        order = _Order(follows, self._least_gain(step) if step.choice.rows.any() else None)
        return order if order.least_gain is not None else self._united(order, None, step)

    def _least_gain(self, step: _Step) -> float:
        if step.plan is None:
            return 0.0
        b, control = len(step.rids), self.suffix.control
        verify_token = 0.0
        if not control.is_fixed:
            one, two = control.seconds(b, np.array([1, 2]), step.suffix.context).tolist()
            verify_token = two - one
        return self.policy.least_gain(step.plan, b, verify_token)

    def _begun(self, batch: ScheduleBatch) -> _Step:
        """Makes the suffix drafts of a step and chooses the rows that get drafts of the draft model."""
        requests = list(batch.reqs)
        # Until draft() waits for the accepted tokens, the device works.
        self.suffix.settle()
        rids = [request.rid for request in requests]
        try:
            suffix = self.suffix.draft(requests)
        except Exception:
            self.suffix.failed("agentspec could not follow the texts; this step verifies roots only")
            suffix = self.suffix.nothing(requests)
        is_known = int(suffix.ends.min()) >= 0
        self._use.longest = int(suffix.ends.max()) if is_known else self._use.longest + self.max_width
        step = self._step = _Step(rids, suffix, Choice(np.zeros(len(requests), np.bool_), 0.0), suffix.drafts)
        try:
            self._choose(step)
        except Exception:
            self.suffix.failed("agentspec could not choose between drafts; this step has suffix drafts alone")
        step.seconds = time.perf_counter() - suffix.began
        return step

    def _choose(self, step: _Step) -> None:
        """Plans a step whose suffix drafts are known, and chooses its rows for the draft model."""
        suffix, control, b = step.suffix, self.suffix.control, len(step.rids)
        fit = self._use.fit(suffix.requests, self._barred(suffix.requests)) & (suffix.ends >= 0)
        widths = control.candidates(b)
        seconds = control.seconds(b, widths, suffix.context)
        model = self._use.numbers(step.rids, np.maximum(suffix.ends, 0), fit, widths, seconds)
        step.plain_seconds = control.rest + float(seconds[0])
        extends = self._use.follows
        numbers = control.planning_numbers(widths, seconds, model, self._speedup.value, extends=extends)
        plan = step.plan = self._planner.plan(suffix.drafts, suffix.rooms, suffix.context, numbers)
        step.choice = self._use.choose(suffix.drafts, fit, model.promised, plan)

    def _barred(self, requests: list[Req]) -> NDArray[np.bool_] | None:
        """bool[b], rows that must not have drafts; None: there are none."""
        if not self.suffix.some_may_not_draft:
            return None
        return np.array([not self.suffix.may_draft(request.rid) for request in requests])

    def _follow(self, follows: bool) -> None:
        """Sets whether the draft model reads prompts and accepted tokens from now on."""
        self._draft_worker.follows = self._use.follows = follows
        self._draft_worker.is_timed = self._order is None or self._use.times_next()

    def _launched_passes(self, batch: ScheduleBatch, least_gain: float) -> LaunchedTrees | None:
        worker = self._draft_worker
        started = time.perf_counter()
        try:
            worker.stop.least_gain = least_gain
            start = self._clock.start() if worker.is_timed else None
            launched: LaunchedTrees = worker.passes(batch)
            if self._order is None and self.suffix.drafts_here:
                launched.start_copy()
            if start is not None:
                # A GPU reports the time some steps later, when the worker may have drafted for another batch.
                context = self._step.suffix.context if isinstance(self._step, _Step) else self._context
                self._clock.stop(start, partial(self._passes_took, len(batch.reqs), worker.num_passes, context))
            launched.seconds = time.perf_counter() - started
        except Exception:
            self.suffix.failed("agentspec could not draft with the model; this step has suffix drafts alone")
            return None
        self.counters.add("drafter_steps", 1)
        return launched

    def _most_context(self, step: _Step, planned: PlannedStep) -> int:
        is_known = int(step.suffix.ends.min()) >= 0
        return planned.context if is_known else len(step.rids) * (self._max_position + 1)

    def _united(self, order: _Order, trees: LaunchedTrees | None, step: _Step) -> _Order:
        """Merges the drafts of both drafters on the first rank and builds the trees to verify.

        `trees`: the draft model's; None: there are suffix drafts only.
        """
        started = time.perf_counter()
        suffix, rows = step.suffix, step.choice.rows
        try:
            model = None if trees is None else trees.wait()
            # Without the draft model's trees there is nothing to merge, unless the policy excludes suffix drafts.
            if model is not None or self.policy.config.tau == math.inf:
                step.drafts = self.policy.combine(suffix.drafts, model, rows & (model is not None), suffix.rooms)
        except Exception:
            self.suffix.failed("agentspec could not unite drafts; this step has suffix drafts alone")
        seconds = time.perf_counter() - started
        try:
            num_drafted, planned = self._built(step)
        except Exception:
            self.suffix.failed("agentspec could not build the drafts of a step; it verifies roots only")
            step.drafts = self.suffix.nothing(suffix.requests).drafts
            num_drafted, planned = self.suffix.control.plan_roots(len(step.rids), suffix.context)
            self._staging.build(step.drafts, planned.width, num_drafted)
        if trees is not None and planned.plan is not None and step.plan is not None and self.policy.merges:
            # What unions bring is compared with what was foreseen of them.
            estimated, sizes = self._planner.foreseen(planned.plan.width)
            planned.plan = replace(planned.plan, estimated=estimated, sizes=sizes, united=True)
        planned.drafter_seconds = trees.seconds + seconds if trees is not None else 0.0
        step.num_drafted, step.planned = num_drafted, planned
        self._context = planned.context
        step.seconds += time.perf_counter() - started
        most = self._most_context(step, planned)
        built = None if self._tp_group is None else self._staging.built()
        return _Order(order.follows, order.least_gain, built, planned.width, num_drafted, most)

    def _built(self, step: _Step) -> tuple[NDArray[np.int32], PlannedStep]:
        num_drafted, planned = self.suffix.control.plan(step.drafts, step.suffix.context)
        self._staging.build(step.drafts, planned.width, num_drafted)
        return num_drafted, planned

    def _count(self, step: _Step) -> None:
        """Counts a step that was launched, and learns from it."""
        assert step.planned is not None and step.num_drafted is not None
        fixed = self.suffix.control.is_fixed
        width = self.max_width if fixed else int(np.diff(step.suffix.drafts.offsets).max())
        extend = self.policy.costs.extend(len(step.rids) * width)
        drafts, b = int(np.count_nonzero(step.choice.rows)), len(step.rids)
        self._use.pause.observe_step(step.choice.saved, drafts, extend, rows=b, ready=step.choice.ready)
        self.counters.add("verified_tokens", step.planned.num_tokens)
        self.counters.add("drafting_seconds", step.seconds)
        step.drafted = DraftedStep.of(step.drafts, step.num_drafted)
        step.drafted.count_drafted(self.counters)
        self.suffix.launched(step.suffix, step.num_drafted > 0)
        if isinstance(step.drafts, HybridBatch):
            step.drafts = step.drafts.first(step.num_drafted)
        else:
            # The arrays are views of the engine's memory. The next step overwrites it before this step is observed.
            offsets = np.concatenate(([0], np.cumsum(step.num_drafted + 1))).astype(np.int32)
            step.drafts = replace(step.drafts, offsets=offsets)

    def verify(self, batch: ScheduleBatch, *args: object, **kwargs: object) -> BatchResult:
        """Runs SGLang's verification at this step's width and topk, and starts the copy of its result to the host."""
        planned, width = self._step.planned if self._step is not None else None, self._use.width
        kept = self.topk, self.speculative_num_steps, self.speculative_num_draft_tokens
        self.topk, self.speculative_num_draft_tokens = self._verify_topk, width
        self.speculative_num_steps = width - 1
        try:
            start = self._clock.start()
            result: BatchResult = super().verify(batch, *args, **kwargs)
            end = self._clock.stop(start, partial(self._verify_took, planned))
        finally:
            self.topk, self.speculative_num_steps, self.speculative_num_draft_tokens = kept
        if planned is not None:
            self.suffix.control.verifies(planned, end, in_order=isinstance(self._step, AheadStep))
        if (step := self._step) is not None:
            of, report = (step, step.report) if isinstance(step, AheadStep) else (step.suffix, None)
            step.read = self.suffix.accepted.verified(of.requests, of.rows, of.padding, result, report)
        return result

    def _agreed(self, order: _Order | None) -> _Order:
        """Broadcasts the first rank's order to all ranks."""
        if self._tp_group is not None:
            order = self._tp_group.broadcast_object(order, src=0)
        assert order is not None
        return order

    def _use_width(self, width: int) -> None:
        self._tiers.use(width)
        # Draft-extend reads rows of this width as well.
        self._draft_worker.speculative_num_draft_tokens = width

    def _passes_took(self, rows: int, passes: int, context: int, seconds: float) -> None:
        self.policy.costs.observe_draft(rows, passes, seconds)
        self.suffix.control.drafted(rows, passes, context, seconds)

    def _verify_took(self, planned: PlannedStep | None, seconds: float) -> None:
        if planned is not None:
            planned.took(seconds)
            if planned.seconds > 0.0:
                self.policy.costs.observe_verify(planned.seconds)

    @property
    def _verify_topk(self) -> int:
        """The topk that SGLang sees. With 1, SGLang skips the tree mask and the moving of accepted nodes."""
        return 2 if self._trees else 1


class HybridEagleWorker(_Hybrid, EAGLEWorkerV2):  # type: ignore[misc]
    """SGLang creates this worker instead of its own for EAGLE heads, EAGLE-3 heads and MTP layers."""


class HybridStandaloneWorker(_Hybrid, StandaloneWorkerV2):  # type: ignore[misc]
    """SGLang creates this worker instead of its own for small models that draft."""
