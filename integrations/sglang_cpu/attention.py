"""Attention over SGLang's paged key-value cache: the two ops that its CPU attention backend calls.

Decoding (one query a request) and verification of a token tree (D queries a request) run through the same padded,
batched computation, so that their results agree but for the last bits, in which sums round by how a batch is padded:
greedy speculative decoding can only be identical to plain decoding if they do. Prompts, whose lengths differ, are
computed one request at a time.

A model's layers ask one after the other with the same mask, which is made once, and for as many keys, which are gathered
into the same memory: fresh memory of that size would be mapped and cleared by the system for each of them.

Shapes: T query tokens in all, H query heads, G key-value heads (H a multiple of G), K and V head dimensions, S cache
slots, B requests. Arithmetic is in float32 where the inputs are narrower.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from agentspec.errors import UnsupportedError
from agentspec.integrations.sglang_cpu.ragged import own_places, spread


def decode_attention_cpu(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: float,
    v_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Store one new token a request in the cache, then attend from it to its whole sequence. Raises UnsupportedError if
    an option of the optimized kernel is asked for that this one lacks.

    Args:
        query: [B, H, K].
        k_cache, v_cache: [S, G, K] and [S, G, V]; written at `loc` unless `key` is None.
        output: [B, H, V], written.
        key, value: [B, G, K] and [B, G, V] or flat over the heads; None where the cache holds them already.
        loc: int64 [B], the slot of each new token.
        attn_logits: scratch space of the optimized kernel; not used.
        req_to_token: int32 [requests, positions], the slot of each position.
        req_pool_indices: int64 [B], the row of each request in `req_to_token`.
        seq_lens: int64 [B], lengths including the new token.
    """
    _refuse_unsupported(k_cache, k_scale, v_scale, logit_cap, is_cross_attn, sliding_window_size, encoder_lens, sinks)
    if key is not None and value is not None:
        k_cache[loc] = key.reshape(-1, *k_cache.shape[1:]).to(k_cache.dtype)
        v_cache[loc] = value.reshape(-1, *v_cache.shape[1:]).to(v_cache.dtype)
    if query.shape[0]:
        sequences = _Sequences(k_cache, v_cache, req_to_token, req_pool_indices, seq_lens, sm_scale)
        output.copy_(_attended(query, sequences, tree_mask=None).reshape(output.shape))


def extend_attention_cpu(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    output: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Attend from the last `extend_seq_lens[b]` tokens of each request to its sequence.

    The keys and values of those tokens are read from the cache, where SGLang's backend stores them before the call;
    `key` and `value` are not used.

    Args:
        query: [T, H, K], requests one after the other.
        output: [T, H, V], written.
        k_cache, v_cache: [S, G, K] and [S, G, V].
        req_to_token: int32 [requests, positions], the slot of each position.
        req_pool_indices: int64 [B], the row of each request in `req_to_token`.
        seq_lens: int64 [B], lengths including the extension.
        extend_seq_lens, extend_start_loc: integer [B], number of queries and index of the first.
        tree_mask: bool, for each request a block of D x D, flattened, one after the other, where D is the greatest
            extension: line i marks the extension tokens that token i attends to, beside the whole prefix. Requests that
            extend by less use the beginning of their block. None means causal order.
        is_causal: whether a token attends to its own sequence up to itself only; ignored under a `tree_mask`.

    Raises:
        UnsupportedError: an option of the optimized kernel is asked for that this one lacks.
        ValueError: `tree_mask` has another size.
    """
    _refuse_unsupported(k_cache, k_scale, v_scale, logit_cap, is_cross_attn, sliding_window_size, encoder_lens, sinks)
    lens: list[int] = extend_seq_lens.tolist()
    if not lens or not query.shape[0]:
        return
    width = max(lens)
    sequences = _Sequences(k_cache, v_cache, req_to_token, req_pool_indices, seq_lens, sm_scale)
    if tree_mask is not None:
        wanted = len(lens) * width**2
        if tree_mask.numel() != wanted:
            raise ValueError(
                f"tree_mask has to hold one D x D block for each of {len(lens)} requests, D the greatest extension "
                f"({wanted} cells); got {tree_mask.numel()} cells and extensions {lens}."
            )
    if len(lens) * width == query.shape[0] and (tree_mask is not None or (is_causal and width <= _MAX_PADDED_QUERIES)):
        output.copy_(_attended(query, sequences, tree_mask).reshape(output.shape))
        return
    if tree_mask is not None:
        # Rows are padded to the largest tree. Padding attends to the prefix, and nothing attends to padding.
        places = _kept.places(lens)
        every = spread(query, places, len(lens) * width)
        result = _attended(every, sequences, tree_mask, missing=width - extend_seq_lens)
        output.copy_(result.flatten(0, 1)[places].reshape(output.shape))
        return
    starts: list[int] = extend_start_loc.tolist()
    totals: list[int] = seq_lens.tolist()
    for row, start, n, total in zip(req_pool_indices.tolist(), starts, lens, totals, strict=True):
        if n:
            _attend_prompt(
                query[start : start + n],
                output[start : start + n],
                k_cache,
                v_cache,
                req_to_token[row, :total],
                sm_scale,
                is_causal,
            )


# A short extension gains from one padded computation for the batch; a prompt would spend memory on its mask.
_MAX_PADDED_QUERIES = 64


@dataclass(frozen=True, slots=True)
class _Sequences:
    """What the B requests of a batch attend to; shapes as in extend_attention_cpu."""

    k_cache: Tensor
    v_cache: Tensor
    req_to_token: Tensor
    req_pool_indices: Tensor
    seq_lens: Tensor
    scale: float


def _attended(query: Tensor, sequences: _Sequences, tree_mask: Tensor | None, missing: Tensor | None = None) -> Tensor:
    """One computation for requests with equally many queries, padded to the longest sequence. Returns [B, n, H, V],
    float32.

    Args:
        query: [B * n, H, K], the last n tokens of each request.
        tree_mask: bool, B blocks of n x n, flattened; None means causal order.
        missing: int64 [B], how many of the n are padding behind the request's sequence; None: none.
    """
    k_cache, v_cache, rows = sequences.k_cache, sequences.v_cache, sequences.req_pool_indices
    batch = rows.shape[0]
    n = query.shape[0] // batch
    owned = sequences.seq_lens
    padded = owned if missing is None else owned + missing
    width = int(padded.max())
    if batch == 1:
        slots = sequences.req_to_token[rows, :width]
    else:
        # Padding repeats the last token of the row: a slot of another request could hold anything, and an infinity
        # there would survive the mask.
        slots = sequences.req_to_token[rows[:, None], torch.minimum(torch.arange(width), (owned - 1)[:, None])]
    mask = _kept.mask(padded, n, tree_mask, query.shape[1] // k_cache.shape[1])
    keys, values = _kept.gathered("keys", k_cache, slots), _kept.gathered("values", v_cache, slots)
    return attend(query.view(batch, n, *query.shape[1:]), keys, values, mask, sequences.scale)


class _Kept(threading.local):
    """Memory and masks that the next layer reuses."""

    def __init__(self) -> None:
        self._places: Tensor | None = None
        self._places_of: list[int] = []
        self._memory: dict[str, Tensor] = {}
        self._mask: Tensor | None = None
        self._mask_of: tuple[Tensor, int, Tensor | None, int] | None = None

    def gathered(self, name: str, cache: Tensor, slots: Tensor) -> Tensor:
        """As `gather`, but into memory that the next call with this name overwrites."""
        if cache.dtype != torch.float32:
            return gather(cache, slots)
        count = slots.numel() * cache[0].numel()
        memory = self._memory.get(name)
        if memory is None or memory.numel() < count:
            # A tensor made in inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                memory = self._memory[name] = torch.empty(count)
        rows = memory[:count].view(slots.numel(), -1)
        torch.index_select(cache.flatten(1), 0, slots.flatten(), out=rows)
        return rows.view(*slots.shape, *cache.shape[1:])

    def mask(self, seq_lens: Tensor, n: int, tree_mask: Tensor | None, shared: int) -> Tensor | None:
        """What is added to the scores, float32 [B, 1, n * shared, width], or None where all see all.

        Args:
            seq_lens: int64 [B].
            n: Queries of a request.
            tree_mask: As of extend_attention_cpu.
            shared: Query heads that share a key-value head.
        """
        if n == 1:
            # A root attends to itself.
            tree_mask = None
            if seq_lens.shape[0] == 1:
                return None
        known = self._mask_of
        if known is not None and known[1] == n and known[3] == shared and torch.equal(known[0], seq_lens):
            trees = known[2]
            if trees is tree_mask or (trees is not None and tree_mask is not None and torch.equal(trees, tree_mask)):
                return self._mask
        # Copies, because the caller may overwrite its tensors before the next call.
        self._mask_of = seq_lens.clone(), n, None if tree_mask is None else tree_mask.clone(), shared
        seen = _seen(seq_lens, n, torch.arange(int(seq_lens.max())), tree_mask)
        self._mask = per_head(added(seen), shared)
        return self._mask

    def places(self, lens: list[int]) -> Tensor:
        """int64 [n], the places of the rows' tokens when all rows are padded to the greatest length."""
        if self._places is None or self._places_of != lens:
            self._places, self._places_of = own_places(torch.tensor(lens), max(lens)), lens
        return self._places


_kept = _Kept()


def _seen(seq_lens: Tensor, n: int, columns: Tensor, tree_mask: Tensor | None) -> Tensor:
    """Which positions each query sees: bool [B, n, width]."""
    batch, width = seq_lens.shape[0], columns.shape[0]
    prefix = (seq_lens - n)[:, None]
    if tree_mask is None:
        return columns <= (prefix + columns[:n])[:, :, None]
    mask = (columns < prefix)[:, None].expand(batch, n, width).contiguous()
    block = (prefix + columns[:n])[:, None].expand(batch, n, n)
    return mask.scatter_(2, block, tree_mask.view(batch, n, n).to(torch.bool))


def added(seen: Tensor) -> Tensor:
    """The additive mask, float32 [B, n, width], of the positions that each query sees, bool of the same shape."""
    return torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))


def per_head(scores: Tensor, shared: int) -> Tensor:
    """The same [B, n, width] for each of `shared` heads side by side, as attend() takes a mask: [B, 1, n * shared, width]."""
    return scores[:, :, None].expand(-1, -1, shared, -1).reshape(scores.shape[0], 1, -1, scores.shape[-1])


def _attend_prompt(
    query: Tensor,
    output: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    scale: float,
    is_causal: bool,
) -> None:
    """One request: [n, H, K] queries that end its sequence of `slots`."""
    n, total = query.shape[0], slots.shape[0]
    mask = None
    if is_causal:
        seen = torch.ones(n, total, dtype=torch.bool).tril_(total - n)[None]
        mask = per_head(added(seen), query.shape[1] // k_cache.shape[1])
    keys = gather(k_cache, slots[None])
    values = gather(v_cache, slots[None])
    output.copy_(attend(query[None], keys, values, mask, scale)[0])


def gather(cache: Tensor, slots: Tensor) -> Tensor:
    """Rows of a cache [S, G, X] at slots [B, width]: [B, width, G, X], in float32."""
    rows = cache.flatten(1).index_select(0, slots.flatten())
    return rows.view(*slots.shape, *cache.shape[1:]).float()


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Softmax attention.

    The query heads that share a key-value head are laid beside each other as more queries of that head, which spares
    repeating the keys and values. `query`: [B, n, H, K]; keys: [B, width, G, K]; values: [B, width, G, V]; mask:
    float32 [B, 1, n * H / G, width], added to the scores, or None. Returns [B, n, H, V], float32.
    """
    batch, n, heads, _ = query.shape
    groups = keys.shape[2]
    shared = heads // groups
    # [B, n, G, shared, K] -> [B, G, n * shared, K]: query tokens outside, so that a mask row repeats side by side.
    folded = query.float().view(batch, n, groups, shared, -1).transpose(1, 2).reshape(batch, groups, n * shared, -1)
    out = F.scaled_dot_product_attention(
        folded, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask, scale=scale
    )
    return out.view(batch, groups, n, shared, -1).transpose(1, 2).reshape(batch, n, heads, -1)


def _refuse_unsupported(
    k_cache: Tensor,
    k_scale: float,
    v_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    asked = [
        name
        for name, present in (
            ("logit_cap", logit_cap > 0),
            ("cross attention", is_cross_attn or encoder_lens is not None),
            ("sliding_window_size", sliding_window_size > 0),
            ("sinks", sinks is not None),
            ("a quantized key-value cache", k_cache.dtype.itemsize < 2 or k_scale != 1.0 or v_scale != 1.0),
        )
        if present
    ]
    if asked:
        raise UnsupportedError(
            f"The reference attention of agentspec for CPUs computes plain self-attention; this model asks for "
            f"{', '.join(asked)}. Serve a model without it (Llama, Qwen2 or Qwen3, for example), with an unquantized "
            "key-value cache, or use a GPU."
        )
