"""Small Llamas and EAGLE-3 heads in the simplest possible torch code. They process one token and one row at a time, and
recompute drafted paths from their first token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class ReferenceLlama:
    """A model with its own KV cache, [slots, kv_heads, head_dim] for each layer."""

    def __init__(self, model: Any, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        self._core, self._attention = model.model, model.model.layers[0].self_attn
        self._head = model.lm_head.weight[: model.logits_processor.vocab_size]
        self.is_head = hasattr(self._core, "fc")
        self.keys, self.values = [cache.clone() for cache in keys], [cache.clone() for cache in values]

    def read(
        self, texts: Sequence[Tensor], tokens: Sequence[Sequence[int]], hidden: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs the model on the last `tokens` of texts, which are given as slots. Returns the logits and the hidden
        state at the end of each text."""
        found, used = [], 0
        for slots, row in zip(texts, tokens, strict=True):
            start = len(slots) - len(row)
            for i, token in enumerate(row):
                wide = None if hidden is None else hidden[used + i]
                before = [
                    [(k[s], v[s]) for s in slots[: start + i]] for k, v in zip(self.keys, self.values, strict=True)
                ]
                logits, state, new = self._step(token, start + i, wide, before)
                for layer, (key, value) in enumerate(new):
                    self.keys[layer][slots[start + i]], self.values[layer][slots[start + i]] = key, value
            used += len(row)
            found.append((logits, state))
        logits, states = zip(*found, strict=True)
        return torch.stack(logits), torch.stack(states)

    def path(self, slots: Tensor, tokens: Sequence[int], hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the logits and the hidden state after tokens that follow a text. The KV cache keeps none of them."""
        seen = [[(k[s], v[s]) for s in slots] for k, v in zip(self.keys, self.values, strict=True)]
        for i, token in enumerate(tokens):
            logits, hidden, new = self._step(token, len(slots) + i, hidden if self.is_head else None, seen)
            seen = [[*layer, pair] for layer, pair in zip(seen, new, strict=True)]
        return logits, hidden

    def _step(
        self, token: int, position: int, hidden: Tensor | None, seen: list[list[tuple[Tensor, Tensor]]]
    ) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        attention, written = self._attention, []
        heads, kv_heads, size = attention.num_heads, attention.num_kv_heads, attention.head_dim
        x = self._core.embed_tokens.weight[token]
        if hidden is not None and len(hidden) != len(x):
            hidden = F.linear(hidden, self._core.fc.weight, self._core.fc.bias)
        for number, layer in enumerate(self._core.layers):
            entry, residual = _normed(layer.input_layernorm, x), x
            if self.is_head:
                entry, residual = torch.cat([entry, _normed(layer.hidden_norm, hidden)]), hidden
            qkv = F.linear(entry, layer.self_attn.qkv_proj.weight).view(-1, size)
            turned = _rotated(qkv[: heads + kv_heads], attention.rotary_emb.cos_sin_cache[position])
            written.append((turned[heads:], qkv[-kv_heads:]))
            keys, values = (torch.stack(part) for part in zip(*seen[number], written[-1], strict=True))
            mixed = []
            for head in range(heads):
                group = head * kv_heads // heads
                weights = torch.softmax(keys[:, group] @ turned[head] / size**0.5, dim=0)
                mixed.append(weights @ values[:, group])
            x = residual + F.linear(torch.cat(mixed), layer.self_attn.o_proj.weight)
            gate, up = F.linear(_normed(layer.post_attention_layernorm, x), layer.mlp.gate_up_proj.weight).chunk(2)
            x = x + F.linear(F.silu(gate) * up, layer.mlp.down_proj.weight)
        normed = _normed(self._core.norm, x)
        return F.linear(normed, self._head), x if self.is_head else normed, written


def reference_trees(
    model: ReferenceLlama, worker: Any, texts: Sequence[Tensor], topk_p: Tensor, topk_index: Tensor, hidden: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Computes the result of a draft worker's `draft_forward`, and the number of passes it takes.

    Args:
        worker: An object with the attributes of agentspec's draft workers.
        hidden: [rows, H], or None for a small model, whose hidden states are not kept.
    """
    rows, k = topk_p.shape
    hot = worker.hot_token_id
    if hidden is not None:
        topk_p = _accepted(worker, hidden, topk_p)
    first = topk_index if hot is None else hot[topk_index]
    scores, tokens = [row.tolist() for row in topk_p], [row.tolist() for row in first]
    groups = [list(range(-1, k)) for _ in range(rows)]
    branches = [
        [([token], score) for token, score in zip(*row, strict=True)] for row in zip(tokens, scores, strict=True)
    ]
    passes = 1
    for step in range(worker.speculative_num_steps - 1):
        best = torch.tensor([[score for _, score in row] for row in branches])
        if worker.stop.is_over(best, step + 1):
            break
        passes += 1
        begin = k + k * k * step
        for row in range(rows):
            for path, score in branches[row]:
                logits, state = model.path(texts[row], path, None if hidden is None else hidden[row])
                p, index = torch.softmax(logits, dim=0).topk(k)
                p = _accepted(worker, state[None], p[None])[0]
                scores[row] += (score * p).tolist()
                tokens[row] += (index if hot is None else hot[index]).tolist()
            candidates = torch.tensor(scores[row][begin:])
            chosen = candidates.topk(k).indices.tolist()
            branches[row] = [
                ([*branches[row][i // k][0], tokens[row][begin + i]], scores[row][begin + i]) for i in chosen
            ]
            if step + 2 < worker.speculative_num_steps:
                groups[row] += [begin + i for i in chosen]
    all_scores, all_tokens = torch.tensor(scores), torch.tensor(tokens)
    chosen = all_scores.topk(min(worker.max_nodes, all_scores.shape[1]), dim=1).indices.sort().values
    parents = torch.tensor(groups)[:, : None if passes > 1 else 0]
    return parents, chosen, all_tokens.gather(1, chosen), all_scores.gather(1, chosen), passes


def _accepted(worker: Any, hidden: Tensor, topk_p: Tensor) -> Tensor:
    found: Tensor = topk_p if worker.acceptance is None else worker.acceptance.accepted(hidden, topk_p)[0]
    return found


def _normed(norm: Any, x: Tensor) -> Tensor:
    normed: Tensor = x / (x.square().mean() + norm.variance_epsilon).sqrt() * norm.weight
    return normed


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    cos, sin = angles.chunk(2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
