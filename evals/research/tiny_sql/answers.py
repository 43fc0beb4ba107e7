"""The small model's own answers: prompts with its greedy answers, as token ids to learn from and to measure by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from agentspec.evals.research.tiny_sql.model import TinyLlama, rotate
from agentspec.evals.research.tiny_sql.tokenizer import END, render, special_id
from agentspec.evals.research.tiny_sql.train import Encoded
from agentspec.workflows.text_to_sql.agents.prompts import Message

# Rows in a batch. This gives far more tokens a second than single rows, and takes little memory.
_BATCH = 128

_Cache = list[tuple[Tensor, Tensor]]


def greedy_answers(
    model: TinyLlama, tokenizer: Tokenizer, prompts: Sequence[Sequence[Message]], *, max_tokens: int
) -> list[Encoded]:
    """The prompts with the model's greedy answers in its own precision, in the order of the prompts; stage "open".

    An answer ends with its end token, or without one after `max_tokens`. It is kept as the ids that the model chose,
    which may differ from the encoding of its text.
    """
    end_id = special_id(tokenizer, END)
    encoded = [tuple(prompt.ids) for prompt in tokenizer.encode_batch([render(messages) for messages in prompts])]
    # Prompts of similar length share a batch, which needs less padding.
    order = sorted(range(len(encoded)), key=lambda place: len(encoded[place]))
    found: dict[int, Encoded] = {}
    for first in range(0, len(order), _BATCH):
        places = order[first : first + _BATCH]
        answers = _decode(model, [encoded[place] for place in places], max_tokens, end_id)
        found.update((p, Encoded("open", encoded[p], answer)) for p, answer in zip(places, answers, strict=True))
    return [found[place] for place in range(len(encoded))]


@torch.no_grad()
def _decode(
    model: TinyLlama, prompts: Sequence[tuple[int, ...]], max_tokens: int, end_id: int
) -> list[tuple[int, ...]]:
    shape, weight = model.shape, model.embed_tokens.weight
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    width = int(lengths.max())
    # Rows are padded on the right. What padding leaves in the cache is overwritten before it can be seen.
    tokens = torch.tensor([(*prompt, *(0,) * (width - len(prompt))) for prompt in prompts])
    size = (len(prompts), width + max_tokens, shape.kv_heads, shape.head_dim)
    cache = [(weight.new_zeros(size), weight.new_zeros(size)) for _ in range(shape.layers)]
    hidden = _states(model, tokens, torch.arange(width).expand(len(prompts), -1), cache)
    last = hidden[torch.arange(len(prompts)), lengths - 1]
    written = [F.linear(last, weight).argmax(-1)]
    ended = written[0] == end_id
    while len(written) < max_tokens and not bool(ended.all()):
        places = (lengths + len(written) - 1)[:, None]
        hidden = _states(model, written[-1][:, None], places, cache)
        written.append(F.linear(hidden[:, 0], weight).argmax(-1))
        ended |= written[-1] == end_id
    rows = torch.stack(written, 1).tolist()
    return [tuple(row[: row.index(end_id) + 1] if end_id in row else row) for row in rows]


def _states(model: TinyLlama, tokens: Tensor, places: Tensor, cache: _Cache) -> Tensor:
    """Final hidden states [B, T, H] of tokens [B, T] at these positions. Each sees the cache up to its own position.

    Keys and values, each [B, length, kv_heads, head_dim] a layer, are written to the cache.
    """
    x = model.embed_tokens(tokens)
    assert isinstance(model.cos, Tensor) and isinstance(model.sin, Tensor)
    cos, sin = (table[places][:, :, None].to(x.dtype) for table in (model.cos, model.sin))
    rows, length, size = torch.arange(len(tokens))[:, None], int(places.max()) + 1, model.shape.head_dim
    hidden_from = (torch.arange(length) > places[:, :, None])[:, None, None]
    layers: list[Any] = list(model.layers)
    for layer, (keys, values) in zip(layers, cache, strict=True):
        attention, entry = layer.self_attn, layer.input_layernorm(x)
        q, k, v = (
            projection(entry).view(*tokens.shape, -1, size)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        keys[rows, places] = rotate(k, cos, sin)
        values[rows, places] = v
        # Query heads that share a key head are adjacent.
        q = rotate(q, cos, sin).view(*tokens.shape, model.shape.kv_heads, -1, size)
        scores = torch.einsum("btkgd,blkd->bkgtl", q, keys[:, :length]) * size**-0.5
        weights = scores.masked_fill(hidden_from, float("-inf")).softmax(-1)
        x = x + attention.o_proj(torch.einsum("bkgtl,blkd->btkgd", weights, values[:, :length]).flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    out: Tensor = model.norm(x)
    return out
