"""The reference kernels that SGLang calls as `torch.ops.sgl_kernel.*`."""

from __future__ import annotations

from typing import Any

import torch

from agentspec.errors import UnsupportedError
from agentspec.integrations.sglang_cpu.attention import decode_attention_cpu, extend_attention_cpu


def init_cpu_threads_env(cpu_ids: str) -> None:
    """Leave the threads as torch and the environment set them; the optimized kernels bind them to cores here.

    SGLang calls this op and the next at the start on ARM only.
    """


def initialize(size: int, rank: int) -> None:
    """Set up the all-reduce of `size` ranks over shared memory, which one rank does not need.

    Raises:
        UnsupportedError: there is more than one rank.
    """
    if size != 1:
        raise UnsupportedError(
            f"The reference kernels of agentspec for CPUs serve one rank; got {size} (rank {rank}). "
            "Start SGLang with --tensor-parallel-size 1."
        )


_OPS = {
    decode_attention_cpu: (
        "(Tensor query, Tensor(a!) k_cache, Tensor(b!) v_cache, float k_scale, float v_scale, Tensor(c!) output, "
        "Tensor? key, Tensor? value, Tensor loc, Tensor attn_logits, Tensor req_to_token, Tensor req_pool_indices, "
        "Tensor seq_lens, float sm_scale, float logit_cap, bool is_cross_attn, int sliding_window_size, "
        "Tensor? encoder_lens, Tensor? sinks) -> ()"
    ),
    extend_attention_cpu: (
        "(Tensor query, Tensor? key, Tensor? value, Tensor(a!) output, Tensor k_cache, Tensor v_cache, float k_scale, "
        "float v_scale, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, "
        "Tensor extend_start_loc, int max_len_extend, float sm_scale, float logit_cap, bool is_cross_attn, "
        "int sliding_window_size, Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask, bool is_causal) -> ()"
    ),
    init_cpu_threads_env: "(str cpu_ids) -> ()",
    initialize: "(int size, int rank) -> ()",
}

# Definitions last as long as the object that made them.
_library: Any = None


def register_ops() -> None:
    """Define the ops, once a process."""
    global _library
    if _library is None:
        library: Any = torch.library
        _library = library.Library("sgl_kernel", "FRAGMENT")
        for function, signature in _OPS.items():
            _library.define(function.__name__ + signature)
            _library.impl(function.__name__, function, "CompositeExplicitAutograd")
