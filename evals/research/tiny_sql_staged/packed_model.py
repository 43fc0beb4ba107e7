"""The forward pass of the small Llama over a pack of calls; the loss and the exact answers of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from agentspec.evals.research.tiny_sql.model import LlamaShape, TinyLlama, rotate
from agentspec.evals.research.tiny_sql_staged.packing import NO_TARGET, Pack


def packed_hidden(model: TinyLlama, pack: Pack) -> Tensor:
    """Final hidden states [length, hidden] of a pack. Each call's are those that it has alone."""
    tokens, positions, _, _ = pack.tensors()
    x = model.embed_tokens(tokens)
    assert isinstance(model.cos, Tensor) and isinstance(model.sin, Tensor)
    cos, sin = (table[positions][:, None] for table in (model.cos, model.sin))
    for layer in model.layers:
        x = x + _attend(layer.self_attn, layer.input_layernorm(x), cos, sin, pack)  # type: ignore[operator]
        x = x + layer.mlp(layer.post_attention_layernorm(x))  # type: ignore[operator]
    out: Tensor = model.norm(x)
    return out


def _attend(attention: Any, x: Tensor, cos: Tensor, sin: Tensor, pack: Pack) -> Tensor:
    shape: LlamaShape = attention.shape
    heads, kv_heads, size = shape.heads, shape.kv_heads, shape.head_dim

    def split(projection: str) -> Tensor:
        found: Tensor = getattr(attention, projection)(x).view(len(x), -1, size)
        return found

    q, k = (rotate(split(name), cos, sin).transpose(0, 1) for name in ("q_proj", "k_proj"))
    v = split("v_proj").transpose(0, 1)
    # Splits, not slices: the gradient of a split is one concatenation, that of a slice as large as the whole.
    queries, keys, values = (part.split(pack.lengths, 1) for part in (q, k, v))  # type: ignore[no-untyped-call]
    outputs = []
    for own, length, chain in zip(queries, pack.lengths, pack.chains, strict=True):
        seen_keys = torch.cat([keys[number] for number in chain], 1)
        seen_values = torch.cat([values[number] for number in chain], 1)
        before = seen_keys.shape[1] - length
        mask = torch.full((length, before + length), float("-inf")).triu(before + 1)
        # Query heads that share a key head are laid out as one longer sequence of queries.
        rows = own.reshape(kv_heads, heads // kv_heads * length, size)
        scores = torch.baddbmm(mask.repeat(heads // kv_heads, 1), rows, seen_keys.transpose(1, 2), alpha=size**-0.5)
        outputs.append((scores.softmax(-1) @ seen_values).view(heads, length, size))
    joined = torch.cat(outputs, 1).transpose(0, 1).reshape(len(x), heads * size)
    out: Tensor = attention.o_proj(joined)
    return out


def packed_loss(model: TinyLlama, pack: Pack) -> Tensor:
    """Weighted mean of the cross-entropy of all answer tokens."""
    _, _, targets, weights = pack.tensors()
    wanted = targets != NO_TARGET
    logits = F.linear(packed_hidden(model, pack)[wanted], model.embed_tokens.weight)
    losses = F.cross_entropy(logits, targets[wanted], reduction="none")
    return (losses * weights[wanted]).sum() / weights[wanted].sum()


@torch.no_grad()
def exact_answers(model: TinyLlama, packs: Sequence[Pack]) -> dict[str, tuple[int, int]]:
    """By stage: the number of answers whose every token is the model's first choice, and the number of answers.

    That is what greedy decoding would write, given the right prompt.
    """
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for pack in packs:
        _, _, targets, _ = pack.tensors()
        hidden = packed_hidden(model, pack)
        start = 0
        for length, owner in zip(pack.lengths, pack.owners, strict=True):
            part = slice(start, start + length)
            start += length
            if owner is None:
                continue
            wanted = targets[part] != NO_TARGET
            chosen = F.linear(hidden[part][wanted], model.embed_tokens.weight).argmax(-1)
            counts[owner.stage][0] += bool((chosen == targets[part][wanted]).all())
            counts[owner.stage][1] += 1
    return {stage: (hits, number) for stage, (hits, number) in counts.items()}
