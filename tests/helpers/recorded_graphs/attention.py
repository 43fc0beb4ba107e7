"""SGLang's attention backends for CPUs, extended for graphs with buffers that are filled before each replay."""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.srt.layers.attention.intel_amx_backend import IntelAMXAttnBackend, IntelAMXMultiStepDraftBackend
from sglang.srt.layers.attention.verify_mask import VerifyMask, tree_mask_numel
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.eagle_utils import TreeMaskMode
from torch import Tensor

from recorded_graphs import EAGER

logger = logging.getLogger("recorded_graphs")


class RecordedAttention(IntelAMXAttnBackend):  # type: ignore[misc]
    """Owns buffers for steps of the width that is configured when it is made, like SGLang's Triton backend. At topk 1 it
    verifies chains and reads no mask, like SGLang's backend for flash attention.

    A capture reads the buffers; init_forward_metadata_out_graph() fills them before the capture and before each replay.
    """

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner)
        self._is_draft_runner = model_runner.is_draft_worker
        self._reads_mask = get_spec().speculative_eagle_topk > 1
        self._verify_mask: VerifyMask | None = None

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        width = self.num_draft_tokens
        self._lengths = torch.ones(max_bs, dtype=torch.int64)
        self._extend_lengths = torch.full((max_bs,), width, dtype=torch.int32)
        self._extend_starts = torch.arange(max_bs, dtype=torch.int32) * width
        self._scratch = torch.zeros(max_num_tokens, self.num_head, self.num_kv_splits, self.v_head_dim + 1)
        if not self._is_draft_runner:
            cells = tree_mask_numel(TreeMaskMode.QLEN_ONLY, max_bs, width, self.max_context_len)
            mask = torch.ones(cells, dtype=torch.bool)
            self._verify_mask = VerifyMask(mask, TreeMaskMode.QLEN_ONLY, max_bs, self._reads_mask)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    @property
    def verify_mask(self) -> VerifyMask | None:
        return self._verify_mask

    def init_forward_metadata(self, forward_batch: Any) -> None:
        if forward_batch.forward_mode.is_target_verify():
            logger.warning("%s: %d rows", EAGER, forward_batch.batch_size)
        super().init_forward_metadata(forward_batch)

    def _build_extend_metadata(self, forward_batch: Any) -> tuple[Any, Any, Any, Tensor | None]:
        lengths, extend_lengths, starts, mask = super()._build_extend_metadata(forward_batch)
        if mask is not None:
            # In the graphs' buffer, elements that belong to no row follow the mask.
            mask = mask[: forward_batch.batch_size * forward_batch.spec_info.draft_token_num**2]
        return lengths, extend_lengths, starts, mask

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        rows, width, mode = forward_batch.batch_size, self.num_draft_tokens, forward_batch.forward_mode
        if mode.is_target_verify():
            mask = None
            if self._reads_mask:
                mask = self._filled_mask(forward_batch.spec_info.custom_mask, rows * width * width)
            torch.add(forward_batch.seq_lens[:rows], width, out=self._lengths[:rows])
        elif mode.is_draft_extend_v2():
            mask = None
            # Padding rows are shorter than the tokens that they are extended by.
            torch.clamp(forward_batch.seq_lens[:rows], min=width, out=self._lengths[:rows])
        else:
            raise NotImplementedError(f"graphs are for verify steps and draft-extends, got {mode.name}")
        if in_capture:
            self.forward_metadata = (self._scratch[: rows * width], width)
            self.extend_metadata = (self._lengths[:rows], self._extend_lengths[:rows], self._extend_starts[:rows], mask)

    def _filled_mask(self, given: Tensor | None, cells: int) -> Tensor:
        assert self._verify_mask is not None, "only a target verifies"
        buffer = self._verify_mask.buffer
        if given is not None and given.data_ptr() != buffer.data_ptr():
            # In a capture, SGLang passes its own mask, which may be longer.
            filled = min(given.numel(), cells)
            buffer[:filled] = given[:filled]
        return buffer[:cells]


class RecordedDraftAttention(IntelAMXMultiStepDraftBackend):  # type: ignore[misc]
    """RecordedAttention for a draft model's passes. Each pass has its own backend."""

    def __init__(self, model_runner: Any, topk: int, speculative_num_steps: int) -> None:
        super().__init__(model_runner, topk, speculative_num_steps)
        self.attn_backends = [RecordedAttention(model_runner) for _ in self.attn_backends]

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        branches, first = max_bs * self.topk, self.attn_backends[0]
        self._table = torch.zeros(branches, self.pool_len, dtype=torch.int32)
        self._branches = torch.arange(branches)
        self._lengths = torch.ones(len(self.attn_backends), branches, dtype=torch.int64)
        self._scratch = torch.zeros(branches, first.num_head, first.num_kv_splits, first.v_head_dim + 1)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        rows = forward_batch.batch_size
        branches, lengths = rows * self.topk, forward_batch.seq_lens[:rows]
        slots = self.build_draft_decode_metadata(
            self.attn_backends[0].req_to_token_pool.req_to_token,
            forward_batch.req_pool_indices[:rows],
            lengths,
            self.topk,
            self.speculative_num_steps,
            self.pool_len,
        )
        self._table[:branches, : slots.shape[1]] = slots
        # Each pass attends to the prefix and to the drafted tokens of earlier passes.
        passes = torch.arange(1, len(self.attn_backends) + 1)
        self._lengths[:, :branches] = lengths.repeat_interleave(self.topk) + passes[:, None]
        if in_capture:
            for backend, seen in zip(self.attn_backends, self._lengths, strict=True):
                backend.forward_metadata = (self._scratch[:branches], None)
                backend.draft_decode_metadata = self._table[:branches], seen[:branches], self._branches[:branches]

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """Does nothing: a graph does not compute anything from the buffers here."""
