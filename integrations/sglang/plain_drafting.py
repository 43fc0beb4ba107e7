"""Drafting and catching up on a CPU with the drafter in plain torch: what SGLang's forwards give, in a tenth of the time.

catch up   all rows' missing tokens, padded to the longest, in one forward; their keys and values go to the cache
draft      the rows' keys and values are read from the cache once; those of drafted tokens stay here, and each
           drafted token sees the text and its own ancestors

step             0          1              2
tokens read      root's k   best k of k²   best k of k²     [rows, k] in each
candidates       k          k²             k²               numbered in this order, as SGLang does
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from agentspec.integrations.sglang_cpu import attention
from agentspec.integrations.sglang_cpu.drafter.eligibility import is_plain_llama
from agentspec.integrations.sglang_cpu.plain_llama import PlainLlama

# Tokens in one catching up, padding included. Above, SGLang's ragged forward does less work.
MAX_READ = 1024


class PlainDrafting:
    """The forwards of one drafter."""

    def __init__(self, worker: Any) -> None:
        """`worker`: SGLang's draft worker with `TreeDrafting`, its memory allocated."""
        self._worker = worker
        self._model = PlainLlama(worker.draft_runner.model)
        self._scale = self._model.head_dim**-0.5
        pool = worker.draft_runner.token_to_kv_pool
        first = pool.start_layer
        layers = range(first, first + self._model.num_layers)
        # [slots, kv_heads, d] each.
        self.keys = [pool.get_key_buffer(layer) for layer in layers]
        self.values = [pool.get_value_buffer(layer) for layer in layers]

    @staticmethod
    def of(worker: Any) -> PlainDrafting | None:
        """None where the drafter has to run as SGLang runs it."""
        runner = worker.draft_runner
        if not is_plain_llama(runner.model) or worker.draft_runner.server_args.tp_size != 1:
            return None
        pool = runner.token_to_kv_pool
        if type(pool).__name__ != "MHATokenToKVPool" or pool.dtype != runner.model.lm_head.weight.dtype:
            return None
        return PlainDrafting(worker)

    @torch.inference_mode()
    def read(
        self,
        slots: Sequence[Tensor],
        missing: Tensor,
        starts: Sequence[int],
        tokens: Sequence[Sequence[int]],
        hidden: Tensor | None,
    ) -> tuple[Tensor, Tensor] | None:
        """Reads what rows lack; None where that is too much.

        Args:
            slots: Of each row int[end], those of its text in the cache.
            missing: int64[n], of these the slots of what is read, row after row.
            starts: For each row the positions that are there.
            tokens: For each row the tokens that follow each missing position.
            hidden: For a head the target's hidden states, [n, 3 H], row after row.

        Returns:
            logits: [rows, vocabulary], at each row's end.
            state: [rows, H], the drafter's there.
        """
        rows, sizes = len(slots), [len(row) for row in tokens]
        longest = max(sizes)
        if rows * longest > MAX_READ:
            return None
        # Rows are padded at their beginning, so that all end in the last column.
        column = torch.arange(longest)
        first = longest - torch.tensor(sizes)
        there = (column >= first[:, None]).flatten()
        # What padding reads is not used; it sees something, so that it stays finite.
        positions = ((torch.tensor(starts) - first)[:, None] + column).clamp_min(0)
        padded = torch.zeros((rows, longest), dtype=torch.int64)
        flat = padded.view(-1)
        flat[there] = torch.tensor([token for row in tokens for token in row])
        wide = None
        if hidden is not None:
            wide = hidden.new_zeros((rows * longest, hidden.shape[-1]))
            wide[there] = hidden
        places, length = _padded(slots)
        last = self._model.num_layers - 1
        seen = torch.arange(length) <= positions[:, :, None]
        mask_of_ends = self._mask(attention.added(seen[:, -1:]))
        mask = self._mask(attention.added(seen)) if last else mask_of_ends

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.keys[layer][missing], self.values[layer][missing] = k[there], v[there]
            return self._attention(q, *self._cached(layer, places), mask_of_ends if layer == last else mask)

        ends = torch.arange(1, rows + 1) * longest - 1
        normed, state = self._model.forward(flat, positions.flatten(), wide, attend, ends)
        return self._model.logits(normed), state

    @torch.inference_mode()
    def draft(
        self, slots: Sequence[Tensor], topk_p: Tensor, topk_index: Tensor, hidden: Tensor | None
    ) -> SimpleNamespace:
        """Drafts one tree a row.

        Args:
            slots: Of each row int[length], those of its text in the cache, all read.
            topk_p: [rows, k], the likeliest tokens behind the root, and
            topk_index: int64[rows, k], in the drafter's vocabulary.
            hidden: [rows, H], the drafter's state there; None of a small model.

        Returns:
            As `TreeDrafting.draft_forward` does, as attributes `parents`, `chosen`, `tokens`, `estimates`.
        """
        worker: Any = self._worker
        (rows, k), steps, hot = topk_p.shape, worker.speculative_num_steps, worker.hot_token_id
        grown = _Branches(self, slots, k, steps)
        if worker.acceptance is not None:
            topk_p = worker.accepted(hidden, topk_p)
        scores, ids = topk_p, topk_index if hot is None else hot[topk_index]
        by_score, by_token = [scores], [ids]
        groups = [torch.arange(-1, k).expand(rows, -1)]
        state = None if hidden is None else hidden.repeat_interleave(k, 0)
        parents = None
        for step in range(steps - 1):
            if worker.stop.is_over(scores, step + 1):
                break
            normed, state = self._model.forward(
                ids.flatten(),
                grown.positions(step),
                state if hidden is not None else None,
                grown.attend_at(step, parents),
            )
            p, index = torch.softmax(self._model.logits(normed), dim=-1).topk(k, dim=-1)
            if worker.acceptance is not None:
                p = worker.accepted(state, p)
            candidates = (scores.flatten()[:, None] * p).view(rows, k * k)
            written = (index if hot is None else hot[index]).view(rows, k * k)
            by_score.append(candidates)
            by_token.append(written)
            if step == steps - 2:
                break
            scores, best = candidates.topk(k, dim=-1)
            ids, parents = written.gather(1, best), best // k
            groups.append(best + k + k * k * step)
            state = state.view(rows, k, -1).gather(1, parents[:, :, None].expand(-1, -1, state.shape[-1])).flatten(0, 1)
        worker.num_passes = len(by_score)
        all_scores = torch.cat(by_score, 1)
        chosen = all_scores.topk(min(worker.max_nodes, all_scores.shape[1]), dim=-1).indices.sort().values
        return SimpleNamespace(
            parents=torch.cat(groups, 1) if len(by_score) > 1 else groups[0][:, :0],
            chosen=chosen,
            tokens=torch.cat(by_token, 1).gather(1, chosen),
            estimates=all_scores.gather(1, chosen),
        )

    def _cached(self, layer: int, places: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, length, kv_heads, d] each."""
        return attention.gather(self.keys[layer], places), attention.gather(self.values[layer], places)

    def _mask(self, scores: Tensor) -> Tensor:
        """What `_attention` adds, of what is added to the scores of each query, [rows, n, length]."""
        return attention.per_head(scores, self._model.heads // self._model.kv_heads)

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """[rows * n, heads * d], of queries [rows * n, heads, d], keys and values [rows, length, kv_heads, d]."""
        wide = q.reshape(len(k), -1, *q.shape[1:])
        return attention.attend(wide, k, v, mask, self._scale).reshape(len(q), -1).to(q.dtype)


class _Branches:
    """Keys and values of the rows' texts, and behind them those of the tokens drafted so far, k a step."""

    def __init__(self, drafting: PlainDrafting, slots: Sequence[Tensor], k: int, steps: int) -> None:
        self._drafting, self._rows, self._k = drafting, len(slots), k
        self._lens = torch.tensor([len(row) for row in slots])
        places, self._length = _padded(slots)
        room = k * max(steps - 1, 0)
        self._caches = []
        for layer in range(drafting._model.num_layers):
            keys, values = drafting._cached(layer, places)
            self._caches.append((_with_room(keys, room), _with_room(values, room)))
        # Added to the scores of [rows, k] queries.
        self._added = attention.added(
            (torch.arange(self._length + room) < self._lens[:, None])[:, None].expand(-1, k, -1)
        )
        self._itself = attention.added(torch.eye(k, dtype=torch.bool))

    def positions(self, step: int) -> Tensor:
        """int64[rows * k], of the tokens read in a step."""
        return (self._lens + step).repeat_interleave(self._k)

    def attend_at(self, step: int, parents: Tensor | None) -> Callable[[int, Tensor, Tensor, Tensor], Tensor]:
        """Attention of the tokens of a step; `parents`, int64[rows, k], the branches of the last one that they go on."""
        k, begin = self._k, self._length + self._k * step
        if parents is not None:
            self._added = self._added.gather(1, parents[:, :, None].expand(-1, -1, self._added.shape[-1]))
        self._added[:, :, begin : begin + k] = self._itself
        mask = self._drafting._mask(self._added[:, :, : begin + k])

        def attend(layer: int, q: Tensor, new_k: Tensor, new_v: Tensor) -> Tensor:
            keys, values = self._caches[layer]
            shape = (self._rows, k, *new_k.shape[1:])
            keys[:, begin : begin + k], values[:, begin : begin + k] = new_k.reshape(shape), new_v.reshape(shape)
            return self._drafting._attention(q, keys[:, : begin + k], values[:, : begin + k], mask)

        return attend


def _with_room(cached: Tensor, room: int) -> Tensor:
    """A copy of [rows, length, ...] with places behind, to be written before they are read."""
    rows, length, *rest = cached.shape
    grown = cached.new_empty((rows, length + room, *rest))
    grown[:, :length] = cached
    return grown


def _padded(slots: Sequence[Tensor]) -> tuple[Tensor, int]:
    """int64[rows, length] and length; the slot of padding is 0."""
    padded = torch.nn.utils.rnn.pad_sequence([row.long() for row in slots], batch_first=True)
    return padded, padded.shape[1]
