"""The worker with a drafter: SGLang's EAGLE or STANDALONE verification, fed with suffix and model drafts row by row.

One decode step:
  1. suffix drafts for every row, as without a drafter (suffix_drafter.py);
  2. the policy says which rows the model drafter is to draft for; often none (agentspec.policy);
  3. for these alone the drafter catches up with the text and drafts (model_drafter.py);
  4. the policy takes for each row the suffix draft, the model's, both in one tree, or the root alone, and the controller
     cuts them to what pays (width_control.py);
  5. trees of both kinds are verified in one forward, as wide as the widest of them;
  6. the target's hidden states of accepted tokens are kept for the drafter's next catching up.

As without a drafter, whatever fails before 5 costs drafts and nothing else.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2

import agentspec
from agentspec.draft_tree import DraftBatch
from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.acceptance_head import find_acceptance_head
from agentspec.integrations.sglang.device_clock import DeviceClock
from agentspec.integrations.sglang.draft_forward import EagleTreeDrafting, StandaloneTreeDrafting, no_topk
from agentspec.integrations.sglang.draft_stop import DraftStop
from agentspec.integrations.sglang.drafter_states import DrafterState
from agentspec.integrations.sglang.model_drafter import ModelDrafter
from agentspec.integrations.sglang.rows import DraftedStep, host_seq_lens, last_tokens, roots_only
from agentspec.integrations.sglang.suffix_drafter import SuffixDrafter
from agentspec.integrations.sglang.verify_input import VerifyStaging
from agentspec.integrations.sglang.width_control import PlannedStep
from agentspec.integrations.sglang.width_tiers import WidthTiers
from agentspec.policy import HybridBatch, HybridPolicy, StepCosts, prompt_rule

logger = logging.getLogger("agentspec")

# A row that suffix drafts alone serve makes the drafter read after so many tokens all the same, so that what is kept
# for it has a bound.
_MAX_PENDING = 256


@dataclass(slots=True)
class _Verified:
    """A verify step whose accepted tokens may not be known on the host yet."""

    rids: list[str]
    states: list[DrafterState | None]
    accept_lens: torch.Tensor  # [b], bonus tokens counted
    tokens: torch.Tensor  # [b * width], accepted ones first in each row
    hidden: torch.Tensor | None  # [b * width, H'], likewise
    width: int


@dataclass(slots=True)
class _Pending:
    """A step whose result the scheduler has not processed."""

    step: DraftedStep
    planned: PlannedStep
    rids: list[str]
    drafts: DraftBatch
    result: Any


@dataclass(slots=True)
class _Rows:
    """The rows of a step that is being drafted for."""

    batch: Any
    seq_lens: NDArray[np.int64]
    """[b], tokens in the target's KV cache."""
    tails: list[Sequence[int]]
    """For each row the tokens that the scheduler has not processed."""
    wanted: NDArray[np.bool_]
    """[b], those that the model drafter is to draft for."""
    behind: NDArray[np.bool_]
    """[b], those that it is to catch up for."""
    least_gain: float = 0.0
    """Of a further pass of the drafter, in accepted tokens, so that it pays."""


class _Hybrid:
    """Mixed into SGLang's workers with a drafter."""

    def __init__(self: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
        with compat.draft_workers(EagleTreeDrafting, StandaloneTreeDrafting):
            super().__init__(server_args, *args, **kwargs)  # type: ignore[call-arg]
        config = self.target_worker.model_runner.model_config
        self._captures = compat.captures_graphs(server_args, self.device)
        self.suffix = SuffixDrafter(server_args, config, drafts_here=compat.tp_rank(self) == 0, captures=self._captures)
        self._tiers = WidthTiers(self.target_worker.model_runner)
        self.settings, self.max_width = self.suffix.settings, self.suffix.max_width
        self.counters = self.suffix.counters
        self._trees = self.suffix.config.mode == "tree"
        self.policy = HybridPolicy(
            self.settings.hybrid_config(trees=self._trees, max_nodes=self.max_width - 1),
            StepCosts(self.suffix.profile),
        )
        self._reads_hidden = not self.speculative_algorithm.is_standalone()
        self.drafter = ModelDrafter(self._draft_worker, reads_hidden=self._reads_hidden)
        self._prompt_reading = prompt_rule(self.settings.prompt_reading)
        self._prompts_are_read = True
        draft_worker: Any = self._draft_worker
        draft_worker.max_nodes = self.max_width - 1
        draft_worker.reads_prompts = self._reads_prompts
        draft_worker.timed_reading = self._timed_reading
        draft_worker.read_plainly = self.drafter.read_prompts
        draft_worker.acceptance = find_acceptance_head(
            self.settings.acceptance_head, compat.draft_model_path(server_args), draft_worker.draft_runner
        )
        draft_worker.stop = DraftStop(self.settings.stop_threshold)
        self._max_position = int(config.context_len) - 1
        # Made when attention backends are there: they say what masks they want.
        self._staging: VerifyStaging | None = None
        self._clock = DeviceClock(self.device)
        self._tp_group = compat.tensor_parallel_group()
        self._pending: deque[_Pending] = deque()
        self._verified: _Verified | None = None
        if self.suffix.state_metrics is not None:
            self.suffix.state_metrics.read(
                "drafter_tau", lambda: self.policy.tau if math.isfinite(self.policy.tau) else -1
            )
            self.suffix.state_metrics.read(
                "drafter_reads_prompts", lambda: self._reads_hidden and self._prompts_are_read
            )
        if self.suffix.drafts_here:
            logger.info(
                "agentspec %s is active: %s drafts of up to %d tokens beside the drafter %s (%s%s), widths %s, %s",
                agentspec.__version__,
                self.suffix.config.mode,
                self.max_width - 1,
                compat.draft_model_path(server_args),
                self.speculative_algorithm.name,
                ", with an acceptance head" if draft_worker.acceptance else "",
                ",".join(map(str, self.suffix.control.widths)) or "any",
                self.settings.shown(),
            )

    def describe(self: Any) -> dict[str, Any]:
        """The block `agentspec` of `/server_info`."""
        return {
            "active": True,
            "settings": {**self.settings.shown(), "mode": self.suffix.config.mode},
            "num_draft_tokens": self.max_width,
            "width": "fixed" if self.suffix.control.is_fixed else "varying",
            "drafter": {
                "base": self.speculative_algorithm.name,
                "steps": self.speculative_num_steps,
                "topk": self.topk,
                "acceptance_head": self._draft_worker.acceptance is not None,
                "reads_prompts": self._reads_hidden and self._prompt_reading.pays(),
                **self.policy.describe(),
            },
            **self.suffix.describe(),
        }

    def init_cuda_graphs(self: Any) -> None:
        """Called once, when SGLang has captured the target's graphs of the greatest width."""
        super().init_cuda_graphs()  # type: ignore[misc]
        if self._captures:
            control = self.suffix.control
            control.widths = self._tiers.capture(control.widths, may_fail=self._tp_group is None)

    def clear_cache_pool(self) -> None:
        """`/flush_cache` forgets finished outputs. What is in the store stays there."""
        self.suffix.clear()

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        del natural_stop
        self.suffix.finish(rid)
        self.drafter.states.forget(rid)
        self.policy.forget(rid)

    def note_abort(self, rid_prefix: str, everything: bool) -> None:
        self.suffix.abort(rid_prefix, everything)

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """Called once for each verify step, in order; with overlap, after the next step was launched."""
        del batch_size
        if not self._pending:
            return
        done = self._pending.popleft()
        done.step.count_accepted(self.counters, num_correct_drafts_per_req)
        self.suffix.control.observe(done.planned, num_correct_drafts_per_req)
        # The scheduler has moved the result to the host by now.
        self.suffix.guarded(self._observe, done, num_correct_drafts_per_req)

    def _observe(self, done: _Pending, num_accepted: Sequence[int]) -> None:
        counts = np.array(num_accepted[: len(done.rids)], np.int32)
        rows = done.result.next_token_ids.reshape(len(done.rids), -1).tolist()
        accepted = [row[: n + 1] for row, n in zip(rows, counts.tolist(), strict=True)]
        self.policy.observe(done.rids, done.drafts, counts, accepted)

    def forward_batch_generation(self: Any, batch: Any, on_publish: Any = None, **kwargs: Any) -> Any:
        if batch.forward_mode.is_decode() and batch.reqs:
            try:
                return self._decode(batch, on_publish, kwargs.get("grammar_barrier"))
            finally:
                self._tiers.use(self.max_width)
        self.suffix.control.interrupted()
        extends = bool(batch.forward_mode.is_extend())
        # What the base class does to a batch in between is its own affair.
        prompts = copy.copy(batch) if extends else None
        result = super().forward_batch_generation(batch, on_publish=on_publish, **kwargs)  # type: ignore[misc]
        if prompts is not None:
            self.suffix.admit(prompts.reqs)
            ends = [prefix + n for prefix, n in zip(prompts.prefix_lens, prompts.extend_lens, strict=True)]
            read = self._prompts_are_read
            self.suffix.guarded(self._prompts_read, prompts, ends, result.next_draft_input, read)
        return result

    def _prompts_read(self, prompts: Any, ends: Sequence[int], draft_input: Any, read: bool) -> None:
        for rid in self.drafter.states.sweep():
            self.policy.forget(rid)
        self.drafter.prompts_read(prompts, ends, draft_input, read=read)
        self._prompt_reading.observe_prompts(self.policy.costs.read(sum(prompts.extend_lens)))

    def _timed_reading(self, batch: Any) -> Any:
        return self._clock.timed(partial(self.policy.costs.observe_read, sum(batch.extend_lens)))

    def _reads_prompts(self, batch: Any) -> bool:
        """Whether the drafter is to read the prompts of a batch now. A head reads them now or never."""
        read = self._reads_hidden and (self._prompt_reading.pays() or self.policy.config.tau == math.inf)
        if self._tp_group is not None:
            read = self._tp_group.broadcast_object(read, src=0)
        self._prompts_are_read = read
        return bool(read)

    def _decode(self: Any, batch: Any, on_publish: Any, grammar_barrier: Any) -> Any:
        self.suffix.control.step_begins()
        tails = self._settle(batch)
        seq_lens = host_seq_lens(batch)
        started = time.perf_counter()
        drafts, planned = self._drafts(batch, seq_lens, tails)
        width = planned.width
        step = DraftedStep.of(drafts)
        step.count_drafted(self.counters)
        self.counters.add("verified_tokens", len(drafts) * width)
        staging = self._staging or self._make_staging()
        staging.build(drafts, width)
        tensors = staging.tensors(seq_lens)
        self.counters.add("drafting_seconds", time.perf_counter() - started)
        rids = [request.rid for request in batch.reqs]
        # The mask goes to memory of this width's graphs.
        self._tiers.use(width)

        batch.spec_info = EagleVerifyInput(
            draft_token=tensors.tokens,
            custom_mask=compat.verify_mask(self.target_worker.model_runner.attn_backend, tensors.mask, len(rids)),
            positions=tensors.positions,
            retrieve_index=tensors.retrieve_index,
            retrieve_next_token=tensors.next_token,
            retrieve_next_sibling=tensors.next_sibling,
            retrieve_cum_len=None,
            # An accepted path may be as long as the row is wide.
            spec_steps=width - 1,
            topk=self._verify_topk,
            draft_token_num=width,
            capture_hidden_mode=None,
            seq_lens_sum=None,
            seq_lens_cpu=None,
        )
        with self._clock.timed(partial(self._verify_took, planned)):
            result = self._verify(batch, width, grammar_barrier)
        self.drafter.verified(batch)
        if not isinstance(drafts, HybridBatch):
            # Views of the engine's memory, which the next step's drafts may overwrite before this one is processed.
            drafts = replace(drafts, offsets=drafts.offsets.copy(), sources=drafts.sources.copy())
        self._pending.append(_Pending(step, planned, rids, drafts, result))
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        self._verified = _Verified(
            rids,
            [self.drafter.states.get(rid) for rid in rids],
            result.accept_lens,
            result.next_token_ids,
            result.logits_output.hidden_states if self._reads_hidden else None,
            width,
        )
        # The state of the drafter is kept by request; SGLang carries along a place for it that nobody reads.
        following = result.next_draft_input
        following.topk_p, following.topk_index = no_topk(len(rids), self.topk, self.device)
        result.cap_lens = torch.from_numpy(step.num_drafted)
        return result

    def _verify_took(self: Any, planned: PlannedStep, seconds: float) -> None:
        planned.took(seconds)
        self.policy.costs.observe_verify(planned.rows, planned.width, seconds)

    def _make_staging(self: Any) -> VerifyStaging:
        backend = self.target_worker.model_runner.attn_backend
        staging = self._staging = VerifyStaging(
            max_width=self.max_width,
            max_position=self._max_position,
            full_mask=compat.wants_full_mask(backend, self.device),
            device=self.device,
        )
        return staging

    @property
    def _verify_topk(self) -> int:
        """What SGLang takes for the breadth of the trees: 1 lets it skip the mask and the moving of accepted nodes."""
        return 2 if self._trees else 1

    def _verify(self: Any, batch: Any, width: int, grammar_barrier: Any) -> Any:
        """SGLang's verification, at this step's width and breadth."""
        kept = self.topk, self.speculative_num_steps, self.speculative_num_draft_tokens
        self.topk, self.speculative_num_steps, self.speculative_num_draft_tokens = self._verify_topk, width - 1, width
        try:
            return self.verify(batch, grammar_barrier=grammar_barrier)
        finally:
            self.topk, self.speculative_num_steps, self.speculative_num_draft_tokens = kept

    def _settle(self: Any, batch: Any) -> list[Sequence[int]]:
        """Takes over what the previous step accepted; for each row the tokens that the scheduler has not processed."""
        done, self._verified = self._verified, None
        if done is None:
            return [()] * len(batch.reqs)
        lens = done.accept_lens.tolist()
        for row, (state, n) in enumerate(zip(done.states, lens, strict=True)):
            if state is not None and done.hidden is not None:
                state.keep(done.hidden[row * done.width : row * done.width + n].clone())
        if not batch.enable_overlap or batch.grammar_needs_sync():
            return [()] * len(batch.reqs)
        rows = done.tokens.reshape(len(lens), -1).tolist()
        tails = {rid: row[:n] for rid, row, n in zip(done.rids, rows, lens, strict=True)}
        return [tails.get(request.rid, ()) for request in batch.reqs]

    def _drafts(
        self: Any, batch: Any, seq_lens: NDArray[np.int64], tails: list[Sequence[int]]
    ) -> tuple[DraftBatch, PlannedStep]:
        rids = [request.rid for request in batch.reqs]
        suffix = self.suffix.drafts(batch.reqs, seq_lens, tails)
        rows = _Rows(batch, seq_lens, tails, np.zeros(len(rids), bool), np.zeros(len(rids), bool))
        if self.suffix.drafts_here:
            try:
                self._choose(rows, rids, suffix)
            except Exception:
                self.suffix.failed("agentspec could not choose between drafts; this step has suffix drafts alone")
        if self._tp_group is not None:
            suffix, rows.wanted, rows.behind, rows.least_gain = self._tp_group.broadcast_object(
                (suffix, rows.wanted, rows.behind, rows.least_gain), src=0
            )
        model = roots_only(suffix.tokens[suffix.offsets[:-1]])
        wanted = int(rows.wanted.sum())
        drafter_began = time.perf_counter()
        try:
            if rows.behind.any():
                self._catch_up(rows)
            started = self._clock.start()
            if wanted:
                model = self._model_drafts(rows, model)
            drafts: DraftBatch = self.policy.combine(rids, suffix, model, rows.wanted)
            if wanted:
                # What becomes of the drafts takes time as well.
                context = int(seq_lens[rows.wanted].sum())
                self._clock.stop(started, partial(self._drafted, wanted, self._draft_worker.num_passes, context))
        except Exception:
            self.suffix.failed("agentspec could not draft with the model; this step has suffix drafts alone")
            drafts = suffix
        drafter_seconds = time.perf_counter() - drafter_began
        drafts, planned = self.suffix.plan(drafts, seq_lens)
        planned.drafter_seconds = drafter_seconds
        if self._tp_group is not None:
            drafts, planned = self._tp_group.broadcast_object((drafts, planned), src=0)
        return drafts, planned

    def _drafted(self: Any, rows: int, passes: int, context: int, seconds: float) -> None:
        self.policy.costs.observe_draft(rows, passes, seconds)
        self.suffix.control.drafted(rows, passes, context, seconds)

    def _choose(self: Any, rows: _Rows, rids: list[str], suffix: DraftBatch) -> None:
        pending, fit = self.drafter.states.pending(rids, rows.seq_lens)
        fit &= np.array([self._room(rows, row) > 0 and self.suffix.may_draft(rid) for row, rid in enumerate(rids)])
        # The drafter must not be asked for positions that it does not know.
        fit &= rows.seq_lens + self.speculative_num_steps <= self._max_position
        width = self.max_width if self.suffix.control.is_fixed else None
        self.policy.costs.rest = self.suffix.control.rest
        choice = self.policy.choose(rids, suffix, pending, fit, width=width)
        rows.wanted, rows.least_gain = choice.rows, choice.least_gain
        # What is kept for a head's next reading has a bound.
        rows.behind = rows.wanted | (fit & (pending > _MAX_PENDING) if self._reads_hidden else False)
        if self._reads_hidden:
            self._prompt_reading.observe_step(choice.saved, int(choice.saved > 0.0))

    def _room(self: Any, rows: _Rows, row: int) -> int:
        return int(self.suffix.room(rows.batch.reqs[row], int(rows.seq_lens[row]), len(rows.tails[row])))

    def _catch_up(self: Any, rows: _Rows) -> None:
        """The drafter reads what it lacks of the rows that are behind."""
        batch, seq_lens = rows.batch, rows.seq_lens
        behind = np.flatnonzero(rows.behind).tolist()
        lacking = [int(seq_lens[row]) - self.drafter.states[batch.reqs[row].rid].length for row in behind]
        self.counters.add("drafter_steps", 1)
        self.counters.add("drafter_catch_up_tokens", sum(lacking))
        if not any(lacking):
            return
        texts = [last_tokens(batch.reqs[row], rows.tails[row], n) for row, n in zip(behind, lacking, strict=True)]
        report = partial(self.policy.costs.observe_catch_up, sum(lacking))
        with compat.drafter_context(self), self._clock.timed(report):
            self.drafter.catch_up(batch, behind, seq_lens, texts)

    def _model_drafts(self: Any, rows: _Rows, roots: DraftBatch) -> DraftBatch:
        """The drafter's trees for the rows wanted, which have been caught up; `roots` has the others."""
        wanted = np.flatnonzero(rows.wanted).tolist()
        rooms = [self._room(rows, row) for row in wanted]
        drafter: ModelDrafter = self.drafter
        self._draft_worker.stop.least_gain = rows.least_gain
        with compat.drafter_context(self):
            return drafter.draft(rows.batch, wanted, rows.seq_lens, rooms, roots.tokens, self.settings.min_token_prob)


class HybridEagleWorker(_Hybrid, EAGLEWorkerV2):  # type: ignore[misc]
    """Created by SGLang in the place of its worker for EAGLE and EAGLE-3."""


class HybridStandaloneWorker(_Hybrid, StandaloneWorkerV2):  # type: ignore[misc]
    """Created by SGLang in the place of its worker for small models of their own."""
