"""The reference kernels that SGLang calls as `torch.ops.sgl_kernel.*`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from agentspec.errors import UnsupportedError
from agentspec.integrations.sglang_cpu.attention import decode_attention_cpu, extend_attention_cpu


def init_cpu_threads_env(cpu_ids: str) -> None:
    """Leave the threads as torch and the environment set them; the optimized kernels bind them to cores here.

    SGLang calls this op and the next at the start on ARM only.
    """


def initialize(size: int, rank: int) -> None:
    """Set up the all-reduce of `size` ranks over shared memory, which one rank does not need. Raises UnsupportedError
    if there is more than one rank."""
    if size != 1:
        raise UnsupportedError(
            f"The reference kernels of agentspec for CPUs serve one rank; got {size} (rank {rank}). "
            "Start SGLang with --tensor-parallel-size 1."
        )


def decode_attention_unscaled(query: Tensor, k_cache: Tensor, v_cache: Tensor, output: Tensor, *rest: Any) -> None:
    """`decode_attention_cpu` as an older release of SGLang calls it: without scales of a quantized cache."""
    decode_attention_cpu(query, k_cache, v_cache, 1.0, 1.0, output, *rest)


def extend_attention_unscaled(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    output: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *rest: Any,
) -> None:
    """`extend_attention_cpu` as SGLang 0.5.19 calls it: without scales of a quantized cache."""
    arguments: tuple[Any, ...] = (query, key, value, output, k_cache, v_cache, 1.0, 1.0, *rest)
    extend_attention_cpu(*arguments)


def extend_attention_causal(*arguments: Any) -> None:
    """`extend_attention_cpu` as earlier releases call it: without scales, and always causal."""
    extend_attention_unscaled(*arguments, True)


_DECODE = (
    "(Tensor query, Tensor(a!) k_cache, Tensor(b!) v_cache, float k_scale, float v_scale, Tensor(c!) output, "
    "Tensor? key, Tensor? value, Tensor loc, Tensor attn_logits, Tensor req_to_token, Tensor req_pool_indices, "
    "Tensor seq_lens, float sm_scale, float logit_cap, bool is_cross_attn, int sliding_window_size, "
    "Tensor? encoder_lens, Tensor? sinks) -> ()"
)
_EXTEND = (
    "(Tensor query, Tensor? key, Tensor? value, Tensor(a!) output, Tensor k_cache, Tensor v_cache, float k_scale, "
    "float v_scale, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, "
    "Tensor extend_start_loc, int max_len_extend, float sm_scale, float logit_cap, bool is_cross_attn, "
    "int sliding_window_size, Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask, bool is_causal) -> ()"
)


def _unscaled(signature: str) -> str:
    return signature.replace("float k_scale, float v_scale, ", "")


# Overloads of one op: torch takes the first whose signature a call's arguments fit.
_OPS: dict[str, tuple[Callable[..., None], str]] = {
    "decode_attention_cpu": (decode_attention_cpu, _DECODE),
    "decode_attention_cpu.unscaled": (decode_attention_unscaled, _unscaled(_DECODE)),
    "extend_attention_cpu": (extend_attention_cpu, _EXTEND),
    "extend_attention_cpu.unscaled": (extend_attention_unscaled, _unscaled(_EXTEND)),
    "extend_attention_cpu.causal": (extend_attention_causal, _unscaled(_EXTEND).replace(", bool is_causal", "")),
    "init_cpu_threads_env": (init_cpu_threads_env, "(str cpu_ids) -> ()"),
    "initialize": (initialize, "(int size, int rank) -> ()"),
}

# Definitions last as long as the object that made them.
_library: Any = None


def register_ops() -> None:
    """Define the ops, once per process."""
    global _library
    if _library is None:
        library: Any = torch.library
        _library = library.Library("sgl_kernel", "FRAGMENT")
        for name, (function, signature) in _OPS.items():
            _library.define(name + signature)
            _library.impl(name, function, "CompositeExplicitAutograd")
