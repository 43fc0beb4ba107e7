"""Moving entries of the key-value cache: accepted branches of a token tree go to the front of their window."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy slot `src_loc[i]` to slot `tgt_loc[i]` in every buffer, all reads before any write.

    Args:
        data_ptrs: uint64 or int64 [buffers], the address of each buffer's slot 0 in this process.
        strides: int64 [buffers], bytes from a slot to the next, all of which are copied.
        tgt_loc, src_loc: integer [n]. Targets are distinct, except where a target equals its source.

    Only the caller knows how many slots a buffer has: locations past the end corrupt memory.

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
            rows = rows.view(torch.int64)  # An eighth of the elements: three times as fast.
        rows.index_copy_(0, targets, rows.index_select(0, sources))


def _memory(address: int, size: int) -> Tensor:
    """`size` bytes at an address as uint8 [size], shared and not owned."""
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
