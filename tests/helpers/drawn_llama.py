"""SGLang models with random weights, reduced to the attributes that native draft models read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


def drawn_llama(
    *,
    hidden: int,
    mlp: int,
    heads: int = 2,
    kv_heads: int = 1,
    vocabulary: int,
    outputs: int | None = None,
    layers: int = 1,
    is_head: bool,
    positions: int = 64,
) -> Any:
    """Imitates SGLang's LlamaForCausalLM or, with `is_head`, its LlamaForCausalLMEagle3, as far as drafters read them.

    Args:
        outputs: Number of tokens that have logits; None: the whole vocabulary.
    """

    def linear(size: int, inputs: int) -> Any:
        return SimpleNamespace(weight=torch.randn(size, inputs) / inputs**0.5, bias=None)

    def norm() -> Any:
        return SimpleNamespace(weight=0.5 + torch.rand(hidden), variance_epsilon=1e-5)

    head_dim = hidden // heads
    angles = torch.randn(positions, head_dim // 2)
    rotary = SimpleNamespace(cos_sin_cache=torch.cat([angles.cos(), angles.sin()], -1))
    outputs = outputs or vocabulary

    def layer() -> Any:
        attention = SimpleNamespace(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            qkv_proj=linear((heads + 2 * kv_heads) * head_dim, 2 * hidden if is_head else hidden),
            o_proj=linear(hidden, heads * head_dim),
            rotary_emb=rotary,
        )
        drawn = SimpleNamespace(
            self_attn=attention,
            input_layernorm=norm(),
            post_attention_layernorm=norm(),
            mlp=SimpleNamespace(gate_up_proj=linear(2 * mlp, hidden), down_proj=linear(hidden, mlp)),
        )
        if is_head:
            drawn.hidden_norm = norm()
        return drawn

    core = SimpleNamespace(
        layers=[layer() for _ in range(layers)], embed_tokens=linear(vocabulary, hidden), norm=norm()
    )
    if is_head:
        core.fc = linear(hidden, 3 * hidden)
    # The head is padded to more rows than the vocabulary has.
    head = linear(outputs + 5, hidden)
    return SimpleNamespace(model=core, lm_head=head, logits_processor=SimpleNamespace(vocab_size=outputs))
