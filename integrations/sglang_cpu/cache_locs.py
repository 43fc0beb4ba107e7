"""Bookkeeping of the cache slots that a step reads and writes.

`req_to_token` is int32 [requests, positions] and maps a position of a request to its slot; a *window* is the range of
positions [start, end) of one request. Windows of a batch are flattened one after the other. `pool_len` is the width of
`req_to_token`.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write slots into the windows of a batch: `req_to_token[r, start:end] = out_cache_loc[...]`, in place. Raises
    ValueError if a window ends before it starts or past `pool_len`."""
    rows, columns = _windows(req_pool_indices, start_offset, end_offset, pool_len)
    req_to_token[rows, columns] = out_cache_loc[: rows.numel()].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Read the windows of a batch into the front of `out_cache_loc`, in place; the rest stays unchanged. Raises
    ValueError if a window ends before it starts or past `pool_len`."""
    rows, columns = _windows(req_pool_indices, start_offset, end_offset, pool_len)
    out_cache_loc[: rows.numel()] = req_to_token[rows, columns].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    speculative_num_steps: int,
) -> None:
    """Read the `topk * speculative_num_steps` slots that follow each sequence into `out_cache_loc`, in place. Raises
    ValueError if a window ends past `pool_len`."""
    end = seq_lens + topk * speculative_num_steps
    assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, seq_lens, end, out_cache_loc, pool_len)


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """Write the last accepted token of each request to `bonus_tokens` [B], in place.

    `accept_tokens` holds `accept_stride` tokens per request; the first `accept_lens[b]` >= 1 of them are accepted.
    """
    last = torch.arange(accept_lens.numel()) * accept_stride + accept_lens - 1
    bonus_tokens.copy_(accept_tokens.flatten()[last])


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Write the slots of the accepted nodes to the front of `accept_out_cache_loc`, in place, in their order.

    `accept_index` holds indices into `out_cache_loc`, or -1 where no node was accepted.
    """
    flat = accept_index.flatten()
    slots = out_cache_loc[flat[flat >= 0]]
    accept_out_cache_loc[: slots.numel()] = slots.to(accept_out_cache_loc.dtype)


def _windows(req_pool_indices: Tensor, start: Tensor, end: Tensor, pool_len: int) -> tuple[Tensor, Tensor]:
    """Rows and columns of `req_to_token`, int64 [total], for the windows of a batch."""
    start, lens = start.long(), (end - start).long()
    if lens.numel() and (int(lens.min()) < 0 or int(start.min()) < 0 or int(end.max()) > pool_len):
        raise ValueError(
            f"Windows have to lie in order within [0, {pool_len}]; got starts {start.tolist()} and ends "
            f"{end.tolist()}. A request may be longer than the context length that the server was started with."
        )
    rows = req_pool_indices.long().repeat_interleave(lens)
    # The offset within the window (flat index minus the window's flat start), plus the window's first column.
    columns = torch.arange(rows.numel()) + (start - (lens.cumsum(0) - lens)).repeat_interleave(lens)
    return rows, columns


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy slot `src_loc[i]` to slot `tgt_loc[i]` in every buffer; all reads happen before any write.

    Args:
        data_ptrs: uint64 or int64 [buffers], the address of each buffer's slot 0 in this process.
        strides: int64 [buffers], bytes per slot, all of which are copied.
        tgt_loc, src_loc: integer [n]. Targets are distinct, except where a target equals its source.

    Locations past a buffer's end corrupt memory, because only the caller knows the number of slots in a buffer.

    Raises:
        ValueError: lengths differ, a location or stride is negative, or a buffer has no address.
    """
    if data_ptrs.numel() != strides.numel() or tgt_loc.numel() != src_loc.numel():
        raise ValueError(
            "copy_all_layer_kv_cache_cpu needs one stride a buffer and one source a target; got "
            f"{data_ptrs.numel()} buffers with {strides.numel()} strides and {tgt_loc.numel()} targets with "
            f"{src_loc.numel()} sources."
        )
    moved = tgt_loc != src_loc
    targets, sources = tgt_loc[moved].long(), src_loc[moved].long()
    if not targets.numel():
        return
    lowest = min(int(targets.min()), int(sources.min()))
    if lowest < 0:
        raise ValueError(f"copy_all_layer_kv_cache_cpu needs slots of at least 0; got {lowest}.")
    slots = 1 + max(int(targets.max()), int(sources.max()))
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        if not address or stride <= 0:
            raise ValueError(
                f"copy_all_layer_kv_cache_cpu needs a buffer address and a stride above 0; got {address:#x} and {stride}."
            )
        rows = _memory(address, slots * stride).view(slots, stride)
        if stride % 8 == 0 and address % 8 == 0:
            rows = rows.view(torch.int64)  # With an eighth of the elements the copy is three times as fast.
        rows.index_copy_(0, targets, rows.index_select(0, sources))


def _memory(address: int, size: int) -> Tensor:
    """The `size` bytes at an address as uint8 [size]; the tensor shares the memory and does not own it."""
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
