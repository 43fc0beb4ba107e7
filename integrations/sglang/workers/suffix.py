"""The worker without a draft model: it feeds NGRAMWorker's verification with suffix drafts of varying width.

Where the device runs functions of the host in the order of a stream, parts 1 to 3 are such a function
(stream_order/steps.py), and the scheduler's thread waits for nothing. Elsewhere, and for batches with a grammar, one decode
step has four parts. The device idles from its last result until part 4 launches the target:
  1. The engine appends the accepted tokens to its texts, also those of a step that SGLang has not processed yet
     (accepted_tokens.py). Then one native call drafts a tree for every row. A row without a promising draft keeps only
     its root (suffix_drafter.py).
  2. The controller decides how many drafted tokens pay (widths/control.py).
  3. One native call pads the rows and writes tokens, positions, links and tree masks. One copy moves them to the device
     (verify_input.py).
  4. The base class runs the target, accepts tokens, moves the KV of accepted nodes, computes logprobs and applies
     grammars.
When the next step waits for the device, the worker updates counts and metrics, learns, and closes requests that have
ended.

Correctness does not depend on the engine: roots and positions are read on the device from SGLang's own relay, and
everything else is only a proposal. If parts 1 to 3 fail, each row keeps only its root. With several ranks, the first
rank drafts, and gives its trees to the others.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative import ngram_worker
from sglang.srt.speculative.ngram_info import NgramVerifyInput

import agentspec
from agentspec.drafts import TreeArrays
from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.drafting.device_clock import DeviceClock, Start
from agentspec.integrations.sglang.drafting.rows import DraftedStep
from agentspec.integrations.sglang.drafting.suffix_drafter import SuffixDrafter, SuffixStep
from agentspec.integrations.sglang.drafting.verify_input import VerifyStaging, VerifyTensors, grammar_mask
from agentspec.integrations.sglang.sglang_types import BatchResult, NgramDraftInput, Req, ScheduleBatch, ServerArgs
from agentspec.integrations.sglang.stream_order.ranks import Ranks
from agentspec.integrations.sglang.stream_order.steps import AheadStep, StreamOrder
from agentspec.integrations.sglang.widths.control import PlannedStep
from agentspec.integrations.sglang.widths.tiers import WidthTiers

logger = logging.getLogger("agentspec")


@dataclass(slots=True)
class _Step:
    """A step from its drafts until the scheduler has processed its result."""

    num_drafted: NDArray[np.int32]
    """int32[b], number of verified nodes of each row, its root not counted."""
    planned: PlannedStep | None = None
    """This field and those below stay at their defaults on all ranks but the first."""
    suffix: SuffixStep | None = None
    seconds: float = 0.0
    """Time from the last result until the trees were built."""
    drafted: DraftedStep | None = None
    """None until the step is counted."""


@dataclass(frozen=True, slots=True)
class _Order:
    """What the first rank tells the others to verify."""

    built: NDArray[np.int64]
    width: int
    num_drafted: NDArray[np.int32]
    ends: NDArray[np.int64]


class AgentspecWorker(ngram_worker.NGRAMWorker):  # type: ignore[misc]
    """SGLang creates this worker in each scheduler process instead of NGRAMWorker."""

    # Made at the end of the start, when SGLang knows how many requests it runs at once.
    _staging: VerifyStaging

    def __init__(self, server_args: ServerArgs, *args: object, **kwargs: object) -> None:
        with compat.without_ngram_corpus():
            super().__init__(server_args, *args, **kwargs)
        config = self.model_runner.model_config
        self.suffix = SuffixDrafter(server_args, self.model_runner, drafts_here=compat.tp_rank(self) == 0)
        self._tiers = WidthTiers(self.model_runner)
        self.settings, self.max_width = self.suffix.settings, self.suffix.max_width
        self.counters = self.suffix.counters
        if self.settings.profiling:
            compat.verify_padded(self.model_runner)
            self.suffix.control.measure_peaks(self.device, config.dtype, int(config.hidden_size))
        self._tp_group = compat.tensor_parallel_group()
        self._knows_no_lengths = compat.leave_lengths_to_worker(self.model_runner)
        # The ranks that run steps in stream order together, and what launches the host's part on the first one.
        self._ranks: Ranks | None = None
        self._order: StreamOrder | None = None
        self._step: _Step | AheadStep | None = None
        self._pending: deque[_Step | AheadStep] = deque()
        self._clock = DeviceClock(self.device)
        self._started: Start = 0.0
        if self.suffix.drafts_here:
            logger.info(
                "agentspec %s is active: %s drafts of up to %d tokens, %s",
                agentspec.__version__,
                self.suffix.config.mode,
                self.max_width - 1,
                self.settings.shown(),
            )

    def describe(self) -> dict[str, object]:
        """The block `agentspec` of `/server_info`."""
        return {
            "active": True,
            "settings": {**self.settings.shown(), "mode": self.suffix.config.mode},
            "num_draft_tokens": self.max_width,
            "width": "fixed" if self.suffix.control.is_fixed else "varying",
            "graphs": self._tiers.describe(),
            "padding_skipped": compat.padding_skipped(self.model_runner),
            "stream_order": None if self._order is None else self._order.describe(),
            **self.suffix.describe(),
        }

    def init_cuda_graphs(self) -> None:
        """Called once, after SGLang has captured the target's graphs of the greatest width."""
        super().init_cuda_graphs()
        self.suffix.capture(self._tiers)
        self._staging = VerifyStaging(
            max_rows=len(self.model_runner.req_to_token_pool.req_to_token),
            max_width=self.max_width,
            max_position=int(self.model_runner.model_config.context_len) - 1,
            full_mask=compat.full_mask_by_default(),
            device=self.device,
        )
        self._order, self._ranks = self.suffix.in_stream_order(
            self._staging,
            self.model_runner,
            (self.model_runner.attn_backend,),
            may=self._knows_no_lengths and self._tiers.has_graphs,
        )

    def clear_cache_pool(self) -> None:
        """Called for `/flush_cache`: forgets finished outputs. Outputs in the store stay there."""
        self.suffix.clear()

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        del natural_stop
        self.suffix.finish(rid)

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """Called once for each verify step, in order. With the overlap schedule, the next step is already launched."""
        del batch_size
        self.suffix.control.resumed()
        if not self._pending:
            return
        step = self._pending.popleft()
        if isinstance(step, AheadStep):
            assert self._order is not None
            self._order.observe(step, num_correct_drafts_per_req)
            self.suffix.later(self.suffix.verified_ahead, step, num_correct_drafts_per_req)
        elif step.suffix is not None:
            self.suffix.later(self._observe, step, num_correct_drafts_per_req)

    def _observe(self, step: _Step, num_accepted: list[int]) -> None:
        if step.suffix is not None and step.drafted is not None and step.planned is not None:
            self.suffix.accepted_of(step.suffix.requests, step.drafted, num_accepted)
            self.suffix.control.observe(step.planned, num_accepted)

    def forward_batch_generation(self, batch: ScheduleBatch, *args: object, **kwargs: object) -> BatchResult:
        if self._tiers.are_outdated:
            self.suffix.capture(self._tiers)
        if batch.forward_mode.is_decode():
            return self._decode(batch, args, kwargs)
        self.suffix.control.interrupted(batch)
        is_prompts = bool(batch.forward_mode.is_extend())
        requests = list(batch.reqs)
        ends = (
            [n + prefix for n, prefix in zip(batch.extend_lens, batch.prefix_lens, strict=True)] if is_prompts else []
        )
        result: BatchResult = super().forward_batch_generation(batch, *args, **kwargs)
        if is_prompts:
            self.suffix.prefilled(requests, ends, result.next_token_ids)
        return result

    def _decode(self, batch: ScheduleBatch, args: tuple[object, ...], kwargs: dict[str, object]) -> BatchResult:
        """Runs the base class's own step, which calls `_prepare_for_speculative_decoding` for the trees to verify."""
        try:
            result: BatchResult = super().forward_batch_generation(batch, *args, **kwargs)
            width = self.draft_token_num
        finally:
            self._set_width(self.max_width)
            self._tiers.use(self.max_width)
        step = self._step
        if step is None:
            self._widen(result.next_draft_input, width)
            return result
        if isinstance(step, AheadStep):
            control = self.suffix.control
            control.verifies(step.planned, self._clock.stop(self._started, step.planned.took), in_order=True)
            step.read = self.suffix.accepted.verified(step.requests, step.rows, step.padding, result)
            result.cap_lens = torch.from_numpy(step.num_nodes)
            self._pending.append(step)
            self._widen(result.next_draft_input, width)
            # The device has work by now.
            self.suffix.settle()
            control.launched()
            return result
        if step.suffix is not None and step.planned is not None:
            self._launched(step, step.suffix, step.planned, result)
        self._pending.append(step)
        result.cap_lens = torch.from_numpy(step.num_drafted)
        self._widen(result.next_draft_input, width)
        return result

    def _launched(self, step: _Step, suffix: SuffixStep, planned: PlannedStep, result: BatchResult) -> None:
        """Starts the copy of a launched step's result on the first rank, and puts off the bookkeeping."""
        self.suffix.control.verifies(planned, self._clock.stop(self._started, planned.took), in_order=False)
        self.suffix.accepted.verified(suffix.requests, suffix.rows, suffix.padding, result)
        self.suffix.later(self._count, step, suffix, planned)

    def _count(self, step: _Step, suffix: SuffixStep, planned: PlannedStep) -> None:
        step.drafted = DraftedStep.of(suffix.drafts, step.num_drafted)
        step.drafted.count_drafted(self.counters)
        self.suffix.launched(suffix, step.drafted.num_drafted > 0)
        self.counters.add("verified_tokens", planned.num_tokens)
        self.counters.add("drafting_seconds", step.seconds)

    def _prepare_for_speculative_decoding(self, batch: ScheduleBatch) -> None:
        if not batch.forward_mode.is_decode():
            return
        relayed: NgramDraftInput = batch.spec_info
        accepted, lens = relayed.accept_tokens.view(len(batch.reqs), -1), relayed.accept_lens
        # A grammar walks the tree on the host before the verification.
        if self._ranks is not None and not batch.has_grammar:
            agreed = self._ahead(list(batch.reqs), self._ranks)
            if agreed is not None:
                width, context = agreed
                self._started = self._clock.start()
                rows = len(batch.reqs)
                tensors = self._staging.laid_out(rows, width, batch.seq_lens, accepted, lens, total=context)
                self._set_verify_input(batch, tensors)
                return
        if self._order is not None:
            self._order.interrupted()
        width, context = self._ordered(batch)
        self._set_width(width)
        self._tiers.use(width)
        self._started = self._clock.start()
        tensors = self._staging.tensors(batch.seq_lens, accepted, lens, total=context)
        self._set_verify_input(batch, tensors, self._staging.arrays)

    def _ahead(self, requests: list[Req], ranks: Ranks) -> tuple[int, int] | None:
        """Launches the drafts of a step in stream order, and their way to the other ranks. Returns the step's width and
        an upper bound on the number of tokens in the KV cache over all rows, the same on all ranks; None if the first
        rank failed, so that the step waits for its drafts."""
        step = None
        if (order := self._order) is not None:
            self.suffix.control.step_begins(requests)
            try:
                rows, padding = self.suffix.begin(requests)
                context = order.bound(requests)
                order.plan(requests)
                width = order.width(len(requests))
                step = order.launch(requests, rows, padding, context, width, may_draft=self.suffix.may_draft_now)
            except Exception:
                self.suffix.failed("agentspec could not launch drafts in stream order; this step waits for them")
        agreed = ranks.agreed(None if step is None else (step.width, step.planned.context))
        if agreed is None:
            return None
        self._step, (width, context) = step, agreed
        if order is None:
            self._staging.ahead()
        elif step is not None:
            order.join(step)
        self._set_width(width)
        self._tiers.use(width)
        ranks.share(len(requests), width)
        return width, context

    def _ordered(self, batch: ScheduleBatch) -> tuple[int, int]:
        """Makes the step and builds the trees to verify. The result is the same on all ranks. Returns the step's width,
        and the number of tokens in the KV cache over all rows."""
        order = None
        if self.suffix.drafts_here:
            requests = list(batch.reqs)
            self.suffix.control.step_begins(requests)
            step, suffix, width = self._drafted(requests)
            self._step, ends = step, suffix.ends
            if self._tp_group is not None:
                order = _Order(self._staging.built(), width, step.num_drafted, ends)
        if self._tp_group is not None:
            order = self._tp_group.broadcast_object(order, src=0)
        if not self.suffix.drafts_here:
            assert order is not None
            self._step, width, ends = _Step(order.num_drafted), order.width, order.ends
            self._staging.receive(order.built, width, order.num_drafted)
        if batch.seq_lens_cpu is None:
            # The scheduler did not wait for the lengths. They came from the device together with the tokens.
            batch.seq_lens_cpu = torch.from_numpy(ends) if int(ends.min()) >= 0 else batch.seq_lens.cpu()
        context = batch.seq_lens_sum = int(batch.seq_lens_cpu.numpy().sum())
        return width, context

    def _drafted(self, requests: list[Req]) -> tuple[_Step, SuffixStep, int]:
        """Drafts and builds a step on the first rank, and returns it with its width. On failure it has roots only."""
        try:
            suffix = self.suffix.draft(requests)
            num_drafted, planned = self._built(suffix)
        except Exception:
            self.suffix.failed("agentspec could not build the drafts of a step; it verifies roots only")
            suffix = self.suffix.nothing(requests)
            num_drafted, planned = self.suffix.control.plan_roots(len(requests), suffix.context)
            self._staging.build(suffix.drafts, planned.width, num_drafted)
        seconds = time.perf_counter() - suffix.began
        return _Step(num_drafted, planned, suffix, seconds), suffix, planned.width

    def _built(self, suffix: SuffixStep) -> tuple[NDArray[np.int32], PlannedStep]:
        num_drafted, planned = self.suffix.control.plan(suffix.drafts, suffix.context)
        self._staging.build(suffix.drafts, planned.width, num_drafted)
        return num_drafted, planned

    def _set_verify_input(self, batch: ScheduleBatch, tensors: VerifyTensors, arrays: TreeArrays | None = None) -> None:
        """Builds SGLang's verify input.

        Args:
            batch: SGLang's `ScheduleBatch`.
            tensors: The trees on the device.
            arrays: The same on the host, for a batch with a grammar.
        """
        self.grammar_tree_host = None
        if batch.has_grammar:
            assert arrays is not None
            self.grammar_tree_host = grammar_mask(arrays), arrays.tokens.ravel()
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.input_ids = tensors.tokens
        batch.out_cache_loc = ngram_worker.assign_extend_cache_locs_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=batch.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            end_offset=batch.seq_lens + self.draft_token_num,
            batch_size=len(batch.reqs),
            draft_token_num=self.draft_token_num,
            device=self.device,
        )
        ngram_worker.prepare_mamba_track_for_verify(batch)
        batch.spec_info = NgramVerifyInput(
            draft_token=tensors.tokens,
            custom_mask=tensors.mask,
            positions=tensors.positions,
            retrieve_index=tensors.retrieve_index,
            retrieve_next_token=tensors.next_token,
            retrieve_next_sibling=tensors.next_sibling,
            draft_token_num=self.draft_token_num,
        )

    def _update_ngram_corpus(self, batch: ScheduleBatch) -> None:
        """Does nothing. The base class feeds its trie here; our engine's texts grow before the next draft."""

    def _set_width(self, width: int) -> None:
        # The base class reads the first as this step's width, and the second as the stride of its result.
        self.draft_token_num = width
        self.speculative_num_draft_tokens = width

    def _widen(self, draft_input: NgramDraftInput, width: int) -> None:
        """Pads the relayed rows to the largest width, so that batches of different steps can be merged."""
        if width == self.max_width:
            return
        rows = draft_input.accept_tokens.reshape(-1, width)
        padded = rows.new_zeros((rows.shape[0], self.max_width))
        padded[:, :width] = rows
        draft_input.accept_tokens = padded.flatten()
        draft_input.draft_token_num = self.max_width
        draft_input.num_tokens_per_req = self.max_width
        draft_input.num_tokens_for_logprob_per_req = self.max_width
