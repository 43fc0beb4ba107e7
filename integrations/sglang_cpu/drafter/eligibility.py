"""Decides which of SGLang's draft models the native code can compute with the same results."""

from __future__ import annotations

from typing import Any

import torch

_KINDS = ("LlamaForCausalLM", "LlamaForCausalLMEagle3")


def is_head(model: Any) -> bool:
    """Whether SGLang's draft model takes hidden states as input."""
    return hasattr(model.model, "fc")


def is_plain_llama(model: Any) -> bool:
    """Whether SGLang's model is a plain Llama or a plain EAGLE-3 head of one layer.

    A plain model is unquantised, unpacked, on a CPU, not split over ranks, and uses none of the options of its class.
    False for a model that lacks one of the attributes that are read, because it comes from an unknown release.
    """
    try:
        return _is_plain_model(model)
    except AttributeError:
        return False


def has_plain_cache(runner: Any) -> bool:
    """Whether SGLang's `ModelRunner` stores keys and values of one rank in float32 by slot.

    The runner must have allocated its memory.
    """
    pool = runner.token_to_kv_pool
    return bool(
        runner.server_args.tp_size == 1
        and type(pool).__name__ == "MHATokenToKVPool"
        and pool.dtype == runner.model.lm_head.weight.dtype == torch.float32
    )


def _is_plain_model(model: Any) -> bool:
    kind, core = type(model).__name__, model.model
    layers = list(core.layers)
    if kind not in _KINDS or model.lm_head.weight.device.type != "cpu":
        return False
    if kind == "LlamaForCausalLMEagle3" and (
        len(layers) != 1 or core.input_norm is not None or core.fc_norm is not None or core.norm_output
    ):
        return False
    logits = model.logits_processor
    if logits.logit_scale is not None or logits.final_logit_softcapping is not None or logits.use_fp32_lm_head:
        return False
    return bool(layers) and all(_is_plain_layer(layer) for layer in layers)


def _is_plain_layer(layer: Any) -> bool:
    attention, mlp = layer.self_attn, layer.mlp
    rotary, radix = attention.rotary_emb, attention.attn
    linears = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
    return (
        all(type(linear.quant_method).__name__ == "UnquantizedLinearMethod" for linear in linears)
        and all(linear.bias is None and not getattr(linear, "use_intel_amx_backend", False) for linear in linears)
        and attention.total_num_heads == attention.num_heads
        and rotary.is_neox_style
        and rotary.rotary_dim == attention.head_dim
        and hasattr(rotary, "cos_sin_cache")
        and type(mlp.act_fn).__name__ == "SiluAndMul"
        # SGLang uses -1 or None for attention without a window.
        and (radix.sliding_window_size is None or radix.sliding_window_size < 0)
        and not radix.logit_cap
    )
