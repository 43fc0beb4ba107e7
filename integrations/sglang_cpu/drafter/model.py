"""SGLang's small Llamas and EAGLE-3 heads as native models, made from the weights and the cache that SGLang holds.

For a model of one or two layers, a framework's calls cost several times as much as its arithmetic; native code runs all
passes of a draft in one call. SGLang computes models that are not in float32, and models so large that torch's threads
and matrix products are faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agentspec.errors import ConfigError
from agentspec.integrations.sglang_cpu.drafter import _drafter
from agentspec.integrations.sglang_cpu.drafter.eligibility import is_head
from agentspec.integrations.sglang_cpu.threads import most_threads

# Maximum number of weights that a pass reads. A pass over more takes milliseconds, so that several threads pay off.
_MOST_WEIGHTS = 8 << 20
# Maximum number of threads that share the rows of a batch. Each pass wakes all of them.
_MOST_THREADS = 8


def native_llama(model: Any, keys: Sequence[Tensor], values: Sequence[Tensor]) -> _drafter.Llama | None:
    """SGLang's model in native code; None where torch should compute it. `model`: one that `is_plain_llama` accepts.
    Its matrices are copied; weights that change later are not seen. `keys`, `values`: the cache of each layer, [slots,
    kv_heads, d], which the native model reads and writes."""
    core = model.model
    # The rows after the vocabulary are padding.
    head = model.lm_head.weight[: model.logits_processor.vocab_size]
    fc = core.fc if is_head(model) else None
    layers = [_arrays_of(layer) for layer in core.layers]
    norms = [core.norm, *(norm for layer in core.layers for norm in _norms_of(layer))]
    attention = core.layers[0].self_attn
    weights = [head, *(tensor for layer in layers for tensor in layer), *([fc.weight] if fc is not None else [])]
    cached = [*weights, core.embed_tokens.weight, attention.rotary_emb.cos_sin_cache, *keys, *values]
    if any(tensor.dtype != cached[0].dtype or tensor.element_size() != 4 for tensor in cached):
        return None
    if sum(tensor.numel() for tensor in weights) > _MOST_WEIGHTS or len({n.variance_epsilon for n in norms}) != 1:
        return None
    try:
        return _drafter.Llama(
            embed=_flat(core.embed_tokens.weight),
            rotary=_flat(attention.rotary_emb.cos_sin_cache),
            fc=None if fc is None else _flat(fc.weight),
            fc_bias=None if fc is None or fc.bias is None else _flat(fc.bias),
            layers=[[_flat(tensor) for tensor in layer] for layer in layers],
            norm=_flat(core.norm.weight),
            head=_flat(head),
            keys=[_flat(cache) for cache in keys],
            values=[_flat(cache) for cache in values],
            hidden=core.norm.weight.shape[0],
            heads=attention.num_heads,
            kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            mlp=layers[0][-1].shape[1],
            eps=core.norm.variance_epsilon,
            num_threads=min(most_threads(), _MOST_THREADS),
        )
    except ConfigError:
        # The native kernels do not support the sizes of this model.
        return None


def _norms_of(layer: Any) -> list[Any]:
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    return [*norms, layer.hidden_norm] if hasattr(layer, "hidden_norm") else norms


def _arrays_of(layer: Any) -> list[Tensor]:
    """The tensors of a layer in the order that the native module expects."""
    attention, mlp, entry = layer.self_attn, layer.mlp, layer.input_layernorm.weight
    return [
        entry,
        layer.hidden_norm.weight if hasattr(layer, "hidden_norm") else entry[:0],
        attention.qkv_proj.weight,
        attention.o_proj.weight,
        layer.post_attention_layernorm.weight,
        mlp.gate_up_proj.weight,
        mlp.down_proj.weight,
    ]


def _flat(tensor: Tensor) -> NDArray[np.float32]:
    """A flat view of a contiguous tensor; writing to it writes to the tensor."""
    array: NDArray[np.float32] = tensor.detach().view(-1).numpy()
    return array
