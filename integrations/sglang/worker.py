"""The speculative worker: NGRAMWorker's verification, fed with agentspec's trees of varying width.

One decode step:
  1. bring the engine's text of each row to what was accepted, also in a step not yet processed (splice.py);
  2. one native call drafts a tree for every row; a row whose draft promises nothing keeps only its root;
  3. pick the width of the step, pad, and build tokens, positions, links and mask (verify_input.py);
  4. the base class runs the target, accepts, moves the KV of accepted nodes, computes logprobs and masks grammars.

Correctness does not lean on the engine: the root of every row comes from the scheduler's own data, and everything
else is only a proposal. Whatever fails between 1 and 3 leaves rows with their root alone.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative import ngram_worker
from sglang.srt.speculative.ngram_info import NgramVerifyInput

import agentspec
from agentspec.draft_tree import DraftBatch, DraftBuffers, Source, TreeArrays
from agentspec.engine import Engine
from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.breaker import Breaker
from agentspec.integrations.sglang.counters import Counters
from agentspec.integrations.sglang.requests import KeptOutput, RequestBook
from agentspec.integrations.sglang.rows import last_token, roots_only, spread
from agentspec.integrations.sglang.settings import Settings, resolve_for_process
from agentspec.integrations.sglang.splice import SpliceError, unprocessed_tokens
from agentspec.integrations.sglang.store_metrics import StoreMetrics
from agentspec.integrations.sglang.store_setup import namespace_key, open_sharing, served_scope
from agentspec.integrations.sglang.tenants import Tenants
from agentspec.integrations.sglang.verify_input import VerifyStaging, grammar_mask

logger = logging.getLogger("agentspec")

_SOURCE_LABELS = {
    int(Source.ROOT): "none",
    int(Source.REQUEST): "request",
    int(Source.GLOBAL): "global",
    int(Source.CORPUS): "corpus",
}


@dataclass(frozen=True, slots=True)
class _Step:
    """What was drafted in a step whose result is not processed yet."""

    sources: list[str]
    num_drafted: NDArray[np.int32]


class AgentspecWorker(ngram_worker.NGRAMWorker):  # type: ignore[misc]
    """Created by SGLang in each scheduler process in the place of NGRAMWorker."""

    def __init__(self, server_args: Any, *args: Any, **kwargs: Any) -> None:
        with compat.without_ngram_corpus():
            super().__init__(server_args, *args, **kwargs)
        self.settings: Settings = resolve_for_process(compat.marked_settings(server_args))
        self.max_width = compat.verify_width(server_args)
        self.counters = Counters()
        self._breaker = Breaker(self.settings.breaker_failures)
        config = self.model_runner.model_config
        # Ranks must verify the same trees: the first one drafts for all, and it alone uses the store.
        self._drafts_here = compat.tp_rank(self) == 0
        scope = served_scope(self.settings, server_args)
        self._engine_config = self.settings.engine_config(
            vocab_size=int(config.vocab_size),
            max_draft_tokens=self.max_width - 1,
            trees=compat.verifies_trees(server_args),
            tokenizer=scope.tokenizer,
        )
        self.engine = Engine(self._engine_config)
        for path in self.settings.corpus_paths:
            self.engine.attach_corpus(path)
        self._sharing = open_sharing(self.settings, self.engine, scope) if self._drafts_here else None
        self._book = RequestBook(
            self.engine,
            Tenants(self.settings.namespace_from, namespace_key(self.settings)),
            on_error=lambda: self.counters.add("draft_errors", 1),
            on_kept=self._share,
        )
        self._context_length = int(config.context_len)
        # A captured graph has one width; without graphs each step takes the width it needs.
        self._fixed_width = compat.captures_graphs(server_args, self.device)
        # Drafts are read before the next step is drafted, so one place for them is enough.
        self._draft_buffers = DraftBuffers(1, self.max_width - 1)
        self._staging = VerifyStaging(
            max_width=self.max_width,
            max_position=self._context_length - 1,
            full_mask=torch.device(self.device).type != "cpu",
            device=self.device,
        )
        self._tp_group = compat.tensor_parallel_group()
        self._pending: deque[_Step] = deque()
        if self._drafts_here:
            if compat.metrics_enabled(server_args):
                labels = {"model_name": str(server_args.served_model_name)}
                self.counters.export(labels)
                if self._sharing:
                    self._sharing.on_health(StoreMetrics(labels))
            logger.info(
                "agentspec %s is active: %s drafts of up to %d tokens, %s width, %s",
                agentspec.__version__,
                self._engine_config.mode,
                self.max_width - 1,
                "fixed" if self._fixed_width else "varying",
                self.settings.shown(),
            )

    def describe(self) -> dict[str, Any]:
        """The block `agentspec` of `/server_info`."""
        stats = self.engine.stats()
        return {
            "active": True,
            "version": agentspec.__version__,
            "settings": {**self.settings.shown(), "mode": self._engine_config.mode},
            "num_draft_tokens": self.max_width,
            "width": "fixed" if self._fixed_width else "varying",
            "counters": self.counters.snapshot(),
            "breaker": {"open": self._breaker.is_open, "openings": self._breaker.num_openings},
            "engine": {name: getattr(stats, name) for name in stats.__slots__},
            "store": self._sharing.health() if self._sharing else None,
        }

    def clear_cache_pool(self) -> None:
        """`/flush_cache` forgets finished outputs, as NGRAM's forgets its trie. What is in the store stays there."""
        if self._sharing:
            self._sharing.engine_cleared()
        self.engine.clear()

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        del natural_stop
        self._guarded(self._book.finish, rid)

    def note_abort(self, rid_prefix: str, everything: bool) -> None:
        self._guarded(self._book.abort, rid_prefix, everything)

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """Called once for each verify step, in order; with overlap, after the next step was launched."""
        del batch_size
        if not self._pending:
            return
        step = self._pending.popleft()
        for source, accepted in zip(step.sources, num_correct_drafts_per_req, strict=False):
            self.counters.add("accepted_tokens", accepted, source)

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        decoding = bool(batch.forward_mode.is_decode())
        try:
            result = super().forward_batch_generation(batch, *args, **kwargs)
            width = self.draft_token_num
        finally:
            self._set_width(self.max_width)
        if decoding:
            result.cap_lens = torch.from_numpy(self._pending[-1].num_drafted)
            self._widen(result.next_draft_input, width)
        elif self._drafts_here and batch.forward_mode.is_extend():
            # After the launch: on a GPU the prompt's index is built while the prefill runs.
            for request in batch.reqs:
                self._guarded(self._book.admit, request)
        return result

    def _prepare_for_speculative_decoding(self, batch: Any) -> None:
        if not batch.forward_mode.is_decode():
            return
        seq_lens = self._seq_lens(batch)
        tails = self._unprocessed(batch)
        arrays, step = self._draft(batch, seq_lens, tails)
        self._pending.append(step)
        self._set_width(arrays.tokens.shape[1])

        tensors = self._staging.tensors(seq_lens)
        self.grammar_tree_host = (grammar_mask(arrays), arrays.tokens.ravel()) if batch.has_grammar else None
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

    def _update_ngram_corpus(self, batch: Any) -> None:
        """The base class would feed its trie here; the engine grows at the next draft instead."""

    def _share(self, kept: KeptOutput) -> None:
        if self._sharing is None:
            return
        tail = self._engine_config.prompt_tail
        self._sharing.publish(
            kept.namespace,
            kept.output_id,
            kept.request_id,
            kept.prompt[-tail:] if tail else (),
            kept.output,
            kept.num_output_tokens,
        )

    def _seq_lens(self, batch: Any) -> NDArray[np.int64]:
        lens = batch.seq_lens if batch.seq_lens.device.type == "cpu" else batch.seq_lens_cpu
        return np.asarray(lens.numpy(), dtype=np.int64)

    def _unprocessed(self, batch: Any) -> list[Sequence[int]]:
        """For each row the tokens accepted in the previous step that the scheduler has not processed yet."""
        if not self.enable_overlap or batch.grammar_needs_sync():
            return [()] * len(batch.reqs)
        accept_lens = batch.spec_info.accept_lens.tolist()
        rows = batch.spec_info.accept_tokens.reshape(len(batch.reqs), -1).tolist()
        return [row[:length] for row, length in zip(rows, accept_lens, strict=True)]

    def _draft(self, batch: Any, seq_lens: NDArray[np.int64], tails: list[Sequence[int]]) -> tuple[TreeArrays, _Step]:
        started = time.perf_counter()
        roots = np.array([last_token(request, tail) for request, tail in zip(batch.reqs, tails, strict=True)], np.int32)
        drafts = roots_only(roots)
        if self._drafts_here and self._breaker.allow():
            try:
                drafts = self._checked(self._engine_drafts(batch, seq_lens, tails, roots), roots)
                self._breaker.succeeded()
            except Exception:
                self._drafting_failed("agentspec could not draft; this step verifies roots only")
        if self._drafts_here:
            self._guarded(self._book.reap, {request.rid for request in batch.reqs})
        if self._tp_group is not None:
            drafts = self._tp_group.broadcast_object(drafts, src=0)
        num_drafted = np.diff(drafts.offsets).astype(np.int32) - 1
        sources = [
            _SOURCE_LABELS[int(drafts.sources[drafts.offsets[row] + 1]) if n else int(Source.ROOT)]
            for row, n in enumerate(num_drafted.tolist())
        ]
        for source, n in zip(sources, num_drafted.tolist(), strict=True):
            self.counters.add("verify_steps", 1, source)
            self.counters.add("drafted_tokens", n, source)
        width = self.max_width if self._fixed_width else int(num_drafted.max()) + 1
        arrays = self._staging.build(drafts, width)
        self.counters.add("drafting_seconds", time.perf_counter() - started)
        return arrays, _Step(sources, num_drafted)

    def _engine_drafts(
        self, batch: Any, seq_lens: NDArray[np.int64], tails: list[Sequence[int]], roots: NDArray[np.int32]
    ) -> DraftBatch:
        """One native call for the rows that may be drafted for, spread over all rows of the batch."""
        rows, ids, caps = [], [], []
        for row, (request, tail) in enumerate(zip(batch.reqs, tails, strict=True)):
            try:
                unprocessed = unprocessed_tokens(
                    num_processed=len(request.origin_input_ids) + len(request.output_ids),
                    seq_len=int(seq_lens[row]),
                    accepted=tail,
                )
            except SpliceError:
                self._drafting_failed("agentspec does not draft for a row whose counts contradict each other")
                continue
            if self._book.sync(request, unprocessed):
                rows.append(row)
                ids.append(request.rid)
                caps.append(self._room(request, int(seq_lens[row]), len(unprocessed)))
        if not rows:
            return roots_only(roots)
        if len(ids) > self._draft_buffers.max_rows:
            self._draft_buffers = DraftBuffers(1 << (len(ids) - 1).bit_length(), self.max_width - 1)
        drafts = self.engine.draft(ids, max_tokens=np.array(caps, np.int32), out=self._draft_buffers)
        return drafts if len(rows) == len(roots) else spread(drafts, rows, roots)

    def _room(self, request: Any, seq_len: int, num_unprocessed: int) -> int:
        """How many drafted tokens can still count: up to max_tokens, the context's end and the width of a row."""
        answer = request.sampling_params.max_new_tokens
        context = self._context_length - seq_len - 1
        room = min(context, self.max_width - 1)
        if answer is not None:
            # The bonus token takes one place of those that are left.
            room = min(room, answer - len(request.output_ids) - num_unprocessed - 1)
        return max(room, 0)

    def _checked(self, drafts: DraftBatch, roots: NDArray[np.int32]) -> DraftBatch:
        """Refuses drafts that do not start from the scheduler's last tokens: they would be about another text."""
        if not np.array_equal(drafts.tokens[drafts.offsets[:-1]], roots):
            raise ValueError("the engine's text does not end where the scheduler's does")
        return drafts

    def _drafting_failed(self, message: str) -> None:
        logger.exception(message)
        self.counters.add("draft_errors", 1)
        self._breaker.failed()

    def _guarded(self, call: Any, *args: Any) -> None:
        """Book-keeping must never stop the scheduler."""
        try:
            call(*args)
        except Exception:
            logger.exception("agentspec could not follow a request; it only costs drafts")
            self.counters.add("draft_errors", 1)

    def _set_width(self, width: int) -> None:
        # The base class reads both: the first for this step, the second as the stride of its result.
        self.draft_token_num = width
        self.speculative_num_draft_tokens = width

    def _widen(self, draft_input: Any, width: int) -> None:
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
