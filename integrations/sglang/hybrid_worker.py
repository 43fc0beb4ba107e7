"""The worker with a drafter: SGLang's EAGLE or STANDALONE verification, fed with suffix and model drafts row by row.

One decode step:
  1. drafts of both kinds for every row, cut to what pays (hybrid_drafter.py);
  2. trees of both kinds are verified in one forward, as wide as the widest of them;
  3. the target's hidden states of accepted tokens are kept for the drafter's next catching up.

As without a drafter, whatever fails in 1 costs drafts and nothing else.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2

import agentspec
from agentspec.draft_tree import DraftBatch
from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.device_clock import DeviceClock
from agentspec.integrations.sglang.draft_forward import EagleTreeDrafting, StandaloneTreeDrafting, no_topk
from agentspec.integrations.sglang.hybrid_drafter import HybridDrafter
from agentspec.integrations.sglang.rows import DraftedStep, host_seq_lens
from agentspec.integrations.sglang.suffix_drafter import SuffixDrafter
from agentspec.integrations.sglang.verify_input import VerifyStaging
from agentspec.integrations.sglang.width_control import PlannedStep
from agentspec.integrations.sglang.width_tiers import WidthTiers
from agentspec.integrations.sglang_cpu.ragged import num_skipped, set_num_nodes, skips_padding
from agentspec.policy import HybridBatch

logger = logging.getLogger("agentspec")


@dataclass(slots=True)
class _Pending:
    """A step whose result the scheduler has not processed."""

    step: DraftedStep
    planned: PlannedStep
    rids: list[str]
    drafts: DraftBatch
    result: Any


class _Hybrid:
    """Mixed into SGLang's workers with a drafter."""

    def __init__(self: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
        with compat.draft_workers(EagleTreeDrafting, StandaloneTreeDrafting):
            super().__init__(server_args, *args, **kwargs)  # type: ignore[call-arg]
        config = self.target_worker.model_runner.model_config
        self.suffix = SuffixDrafter(
            server_args,
            config,
            drafts_here=compat.tp_rank(self) == 0,
            ragged=skips_padding(self.target_worker.model_runner),
        )
        self._tiers = WidthTiers(self.target_worker.model_runner)
        self.settings, self.max_width = self.suffix.settings, self.suffix.max_width
        self.counters = self.suffix.counters
        self._trees = self.suffix.config.mode == "tree"
        self._max_position = int(config.context_len) - 1
        self._clock = DeviceClock(self.device)
        self.drafter = HybridDrafter(
            self.suffix,
            self._draft_worker,
            compat.draft_model_path(server_args),
            reads_hidden=not self.speculative_algorithm.is_standalone(),
            num_steps=self.speculative_num_steps,
            max_position=self._max_position,
            clock=self._clock,
            tp_group=compat.tensor_parallel_group(),
        )
        # Made when attention backends are there: they say what masks they want.
        self._staging: VerifyStaging | None = None
        self._pending: deque[_Pending] = deque()
        if self.suffix.drafts_here:
            logger.info(
                "agentspec %s is active: %s drafts of up to %d tokens beside the drafter %s (%s%s), widths %s, %s",
                agentspec.__version__,
                self.suffix.config.mode,
                self.max_width - 1,
                compat.draft_model_path(server_args),
                self.speculative_algorithm.name,
                ", with an acceptance head" if self.drafter.has_acceptance_head else "",
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
            "padding_skipped": num_skipped(self.target_worker.model_runner),
            "drafter": {
                "base": self.speculative_algorithm.name,
                "steps": self.speculative_num_steps,
                "topk": self.topk,
                **self.drafter.describe(),
            },
            **self.suffix.describe(),
        }

    def init_cuda_graphs(self: Any) -> None:
        """Called once, when SGLang has captured the target's graphs of the greatest width."""
        super().init_cuda_graphs()  # type: ignore[misc]
        self.suffix.control.graphs_captured(self._tiers.capture(self.suffix.widths))

    def clear_cache_pool(self) -> None:
        """`/flush_cache` forgets finished outputs. What is in the store stays there. It follows new weights, too."""
        self.suffix.clear()
        self.drafter.weights_changed()

    def weight_update_runners(self) -> Any:
        """SGLang asks before it replaces weights, and does it before the next step."""
        self.drafter.weights_changed()
        return super().weight_update_runners()  # type: ignore[misc]

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        del natural_stop
        self.suffix.finish(rid)
        self.drafter.forget(rid)

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
        self.drafter.policy.observe(done.rids, done.drafts, counts, accepted)

    def forward_batch_generation(self: Any, batch: Any, on_publish: Any = None, **kwargs: Any) -> Any:
        if batch.forward_mode.is_decode() and batch.reqs:
            try:
                return self._decode(batch, on_publish, kwargs.get("grammar_barrier"))
            finally:
                self._tiers.use(self.max_width)
        self.suffix.control.interrupted()
        # What the base class does to a batch in between is its own affair.
        prompts = copy.copy(batch) if batch.forward_mode.is_extend() else None
        result = super().forward_batch_generation(batch, on_publish=on_publish, **kwargs)  # type: ignore[misc]
        if prompts is not None:
            self.suffix.admit(prompts.reqs)
            self.suffix.guarded(self.drafter.prompts_read, prompts, result.next_draft_input)
        return result

    def _decode(self: Any, batch: Any, on_publish: Any, grammar_barrier: Any) -> Any:
        self.suffix.control.step_begins()
        tails = self.drafter.settle(batch)
        seq_lens = host_seq_lens(batch)
        started = time.perf_counter()
        drafts, planned = self.drafter.drafts(batch, seq_lens, tails)
        width = planned.width
        step = DraftedStep.of(drafts)
        step.count_drafted(self.counters)
        self.counters.add("verified_tokens", planned.num_tokens)
        staging = self._staging or self._make_staging()
        arrays = staging.build(drafts, width)
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
        if self.suffix.control.ragged:
            set_num_nodes(batch.spec_info, torch.from_numpy(arrays.num_nodes))
        with self._clock.timed(partial(self._verify_took, planned)):
            result = self._verify(batch, width, grammar_barrier)
        self.drafter.verified(batch, rids, result, width)
        if not isinstance(drafts, HybridBatch):
            # Views of the engine's memory, which the next step's drafts may overwrite before this one is processed.
            drafts = replace(drafts, offsets=drafts.offsets.copy(), sources=drafts.sources.copy())
        self._pending.append(_Pending(step, planned, rids, drafts, result))
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        # The state of the drafter is kept by request; SGLang carries along a place for it that nobody reads.
        following = result.next_draft_input
        following.topk_p, following.topk_index = no_topk(len(rids), self.topk, self.device)
        result.cap_lens = torch.from_numpy(step.num_drafted)
        return result

    def _verify_took(self: Any, planned: PlannedStep, seconds: float) -> None:
        planned.took(seconds)
        self.drafter.policy.costs.observe_verify(planned.num_tokens, seconds)

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


class HybridEagleWorker(_Hybrid, EAGLEWorkerV2):  # type: ignore[misc]
    """Created by SGLang in the place of its worker for EAGLE and EAGLE-3."""


class HybridStandaloneWorker(_Hybrid, StandaloneWorkerV2):  # type: ignore[misc]
    """Created by SGLang in the place of its worker for small models of their own."""
