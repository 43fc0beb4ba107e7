"""Small Llamas and EAGLE-3 heads in plain torch, from the weights that SGLang loaded.

A drafter of a layer or two computes for some hundred microseconds on a CPU, and SGLang's way to it, made of batches, plans
and modules, takes several milliseconds: as long as the model that it drafts for. CUDA graphs hide that on a GPU; a CPU has
none. What is computed is the same, but for the order of sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from agentspec.integrations.sglang_cpu.drafter.eligibility import is_head
from agentspec.integrations.sglang_cpu.threads import threads_for

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries [m, heads, d], keys and values [n, kv_heads, d]) -> [m, heads * d]."""


class _Norm:
    """x / sqrt(mean(x^2) + eps) * weight, in half the operations of torch's own on a CPU, each of which costs more to
    call than to compute."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        size = weight.shape[-1]
        self._weight = weight * math.sqrt(size)
        self._least = torch.tensor(math.sqrt(size * eps))

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32), self._least)
        return (x * self._weight / length).to(x.dtype)


@dataclass(frozen=True, slots=True)
class _Layer:
    entry: _Norm
    hidden: _Norm | None
    """Of the layer of a head, whose input is a token and a hidden state."""
    qkv: Tensor
    out: Tensor
    after: _Norm
    gate_up: Tensor
    down: Tensor


class PlainLlama:
    """The forward of a drafter; attention over what is cached is the caller's."""

    def __init__(self, model: Any) -> None:
        """`model`: SGLang's, one that `is_plain_llama` accepts."""
        core = model.model
        attention = core.layers[0].self_attn
        self.heads, self.kv_heads, self.head_dim = attention.num_heads, attention.num_kv_heads, attention.head_dim
        self._embed = core.embed_tokens.weight
        self._fc = core.fc.weight if is_head(model) else None
        self._fc_bias = core.fc.bias if is_head(model) else None
        self._layers = [_layer(layer) for layer in core.layers]
        self._norm = _norm(core.norm)
        # The rows behind the vocabulary are padding.
        self._head = model.lm_head.weight[: model.logits_processor.vocab_size]
        self._rotary = attention.rotary_emb.cos_sin_cache
        weights = [w for layer in self._layers for w in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        self._num_weights = sum(weight.numel() for weight in weights)

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def forward(
        self, tokens: Tensor, positions: Tensor, hidden: Tensor | None, attend: Attend, ends: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Reads tokens.

        Args:
            tokens: int64[n].
            positions: int64[n].
            hidden: For a head, [n, 3 H] of the target or [n, H] of its own.
            attend: Is given keys and values of all tokens. In the last layer the queries are those of `ends`.
            ends: int64[m], the tokens whose results are wanted; None: all.

        Returns:
            normed: [m, H], of which `logits` makes logits.
            state: [m, H], what a head reads next, and what SGLang hands out as the drafter's hidden state.
        """
        with threads_for(len(tokens), self._num_weights):
            return self._forward(tokens, positions, hidden, attend, ends)

    def _forward(
        self, tokens: Tensor, positions: Tensor, hidden: Tensor | None, attend: Attend, ends: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        x = F.embedding(tokens, self._embed)
        cos, sin = self._rotary[positions].to(x.dtype)[:, None].chunk(2, dim=-1)
        if hidden is not None and self._fc is not None and hidden.shape[-1] != x.shape[-1]:
            hidden = F.linear(hidden, self._fc, self._fc_bias)
        for number, layer in enumerate(self._layers):
            if layer.hidden is None:
                entry, residual = layer.entry(x), x
            else:
                assert hidden is not None
                entry, residual = torch.cat([layer.entry(x), layer.hidden(hidden)], dim=-1), hidden
            if ends is not None and number + 1 == self.num_layers:
                q, k, v = self._projected_to(ends, layer, entry, cos, sin)
                residual = residual[ends]
            else:
                q, k, v = self._projected(layer, entry, cos, sin)
            residual = torch.addmm(residual, attend(number, q, k, v), layer.out.t())
            gate, up = F.linear(layer.after(residual), layer.gate_up).chunk(2, dim=-1)
            x = torch.addmm(residual, F.silu(gate) * up, layer.down.t())
        normed = self._norm(x)
        # A head hands out what it has before the last norm.
        return normed, normed if self._fc is None else x

    def _projected(self, layer: _Layer, entry: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        qkv = F.linear(entry, layer.qkv).view(len(entry), -1, self.head_dim)
        turned = _rotated(qkv[:, : -self.kv_heads], cos, sin)
        return turned[:, : self.heads], turned[:, self.heads :], qkv[:, -self.kv_heads :]

    def _projected_to(
        self, ends: Tensor, layer: _Layer, entry: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of some tokens, keys and values of all."""
        width = self.heads * self.head_dim
        q = F.linear(entry[ends], layer.qkv[:width]).view(len(ends), -1, self.head_dim)
        k, v = F.linear(entry, layer.qkv[width:]).view(len(entry), 2, -1, self.head_dim).unbind(1)
        return _rotated(q, cos[ends], sin[ends]), _rotated(k, cos, sin), v

    def logits(self, normed: Tensor) -> Tensor:
        """[n, vocabulary of the drafter]."""
        with threads_for(len(normed), self._head.numel()):
            return F.linear(normed, self._head)


def _layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        entry=_norm(layer.input_layernorm),
        hidden=_norm(layer.hidden_norm) if hasattr(layer, "hidden_norm") else None,
        qkv=attention.qkv_proj.weight,
        out=attention.o_proj.weight,
        after=_norm(layer.post_attention_layernorm),
        gate_up=mlp.gate_up_proj.weight,
        down=mlp.down_proj.weight,
    )


def _norm(norm: Any) -> _Norm:
    return _Norm(norm.weight, norm.variance_epsilon)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat(
        [torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)], dim=-1
    )
