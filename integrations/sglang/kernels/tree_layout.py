"""Lays out a step's trees on the device: one Triton kernel on a GPU, plain torch elsewhere.

The host stages the trees without their roots and without the number of tokens in the KV cache. Both are added on the
device:

    tokens[:, 0]   the root of each row
    positions      depth in the tree + number of tokens in the KV cache, clamped to the last position that the model knows
    mask           for backends whose mask covers the prefix: row b has `width` lines, each with seq_lens[b] ones and then
                   a line of the tree

In torch this takes some twenty operations. The host launches each of them on its own, while the GPU idles.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch

logger = logging.getLogger("agentspec")


def lay_out(
    tokens: torch.Tensor,
    positions: torch.Tensor,
    cells: torch.Tensor,
    seq_lens: torch.Tensor,
    roots: torch.Tensor,
    lens: torch.Tensor | None,
    *,
    max_position: int,
    total: int | None,
) -> torch.Tensor:
    """Completes the staged trees of b rows in place, and returns their mask, bool, flat: `cells`, or width *
    (total + b * width) entries. Entries after the last line are not read.

    Args:
        tokens: int64[b, width]; the roots are written to the first column.
        positions: int64[b, width], depths, which are turned into positions.
        cells: bool[b, width, width], the tree masks.
        seq_lens: integer[b], number of tokens in the KV cache.
        roots: integer[b, w]; the root of row i is roots[i, lens[i] - 1], or roots[i, 0] if `lens` is None.
        lens: integer[b], or None.
        max_position: The last position that the model knows. Nodes past it can only be padding.
        total: At least the sum of `seq_lens` if the mask covers the prefix; None if it covers only the trees.
    """
    if tokens.is_cuda and kernel_works(tokens.device):
        return _with_kernel(tokens, positions, cells, seq_lens, roots, lens, max_position, total)
    return _with_torch(tokens, positions, cells, seq_lens, roots, lens, max_position, total)


def full_mask(cells: torch.Tensor, seq_lens: torch.Tensor, total: int) -> torch.Tensor:
    """A mask that covers the prefix: row b has `width` lines, each seq_lens[b] ones and then a line of its tree mask.
    Returns bool, flat, width * (total + b * width) entries. Entries after the last line are not read.

    Args:
        cells: bool[b, width, width], the tree masks.
        seq_lens: integer[b], on the same device.
        total: At least the sum of `seq_lens`.
    """
    rows, width, _ = cells.shape
    lengths = seq_lens.long() + width
    first = (lengths.cumsum(0) - lengths) * width + seq_lens
    steps = torch.arange(width, device=cells.device)
    places = first[:, None, None] + lengths[:, None, None] * steps[:, None] + steps
    mask = torch.ones(width * (total + rows * width), dtype=torch.bool, device=cells.device)
    mask[places.flatten()] = cells.flatten()
    return mask


def _with_torch(
    tokens: torch.Tensor,
    positions: torch.Tensor,
    cells: torch.Tensor,
    seq_lens: torch.Tensor,
    roots: torch.Tensor,
    lens: torch.Tensor | None,
    max_position: int,
    total: int | None,
) -> torch.Tensor:
    last = roots if lens is None else roots.gather(1, (lens - 1).long()[:, None])
    tokens[:, 0] = last[:, 0]
    positions.add_(seq_lens[:, None]).clamp_max_(max_position)
    return cells.flatten() if total is None else full_mask(cells, seq_lens, total)


def _with_kernel(
    tokens: torch.Tensor,
    positions: torch.Tensor,
    cells: torch.Tensor,
    seq_lens: torch.Tensor,
    roots: torch.Tensor,
    lens: torch.Tensor | None,
    max_position: int,
    total: int | None,
) -> torch.Tensor:
    rows, width = tokens.shape
    mask = cells.flatten()
    if total is not None:
        mask = torch.empty(width * (total + rows * width), dtype=torch.bool, device=tokens.device)
    _compiled()[(rows, width)](
        tokens,
        positions,
        cells.view(torch.uint8),
        mask.view(torch.uint8),
        seq_lens,
        roots,
        seq_lens if lens is None else lens,
        width,
        roots.stride(0),
        max_position,
        # This takes few values, so that nothing is compiled while a server runs.
        WIDTH_BLOCK=max(64, 1 << (width - 1).bit_length()),
        HAS_LENS=lens is not None,
        HAS_PREFIX=total is not None,
    )
    return mask


@functools.cache
def _compiled() -> Any:
    """The kernel. It runs one program for each line of each row's mask. Imports Triton."""
    import triton
    import triton.language as tl

    # Without this, Triton would compile further kernels for values of 1, for multiples of 16 and for tensors whose memory
    # begins at a multiple of 16 bytes. Where a tensor begins depends on the shape of the step.
    @triton.jit(  # type: ignore[untyped-decorator]
        do_not_specialize=["width", "root_stride", "max_position"],
        do_not_specialize_on_alignment=["tokens", "positions", "cells", "mask", "seq_lens", "roots", "lens"],
    )
    def layout_kernel(  # type: ignore[no-untyped-def]
        tokens, positions, cells, mask, seq_lens, roots, lens, width, root_stride, max_position,
        WIDTH_BLOCK: tl.constexpr, HAS_LENS: tl.constexpr, HAS_PREFIX: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        line = tl.program_id(1).to(tl.int64)
        node = tl.arange(0, WIDTH_BLOCK)
        seq_len = tl.load(seq_lens + row).to(tl.int64)
        if line == 0:
            root_at = row * root_stride
            if HAS_LENS:
                root_at += tl.load(lens + row).to(tl.int64) - 1
            tl.store(tokens + row * width, tl.load(roots + root_at).to(tl.int64))
            at = positions + row * width + node
            position = tl.load(at, mask=node < width, other=0) + seq_len
            tl.store(at, tl.minimum(position, max_position), mask=node < width)
        if HAS_PREFIX:
            before = tl.zeros((), tl.int64)
            for first in range(0, row, 64):
                other = first + tl.arange(0, 64)
                before += tl.sum(tl.load(seq_lens + other, mask=other < row, other=0).to(tl.int64))
            length = seq_len + width
            start = mask + (before + row * width) * width + line * length
            ones = tl.full((1024,), 1, tl.uint8)
            for first in range(0, seq_len, 1024):
                place = first + tl.arange(0, 1024)
                tl.store(start + place, ones, mask=place < seq_len)
            cell = tl.load(cells + (row * width + line) * width + node, mask=node < width, other=0)
            tl.store(start + seq_len + node, cell, mask=node < width)

    return layout_kernel


@functools.cache
def kernel_works(device: torch.device) -> bool:
    """Whether the kernel gives the same results as torch on this device.

    The first call compiles and tests all kernels that steps need, so make it at the start.
    """
    try:
        works = all(_agrees(device, rows, width) for rows, width in ((1, 1), (3, 5), (70, 2)))
    except Exception:
        logger.exception(
            "agentspec lays out trees with torch operations, because its Triton kernel failed on %s", device
        )
        return False
    if not works:
        logger.error(
            "agentspec lays out trees with torch operations, because its Triton kernel gives wrong results on %s",
            device,
        )
    return works


# The dtypes of roots that steps have with `lens`, and those without: SGLang's relay widens tokens where it keeps them.
_ROOTS_AND_LENS = ((torch.int32, True), (torch.int32, False), (torch.int64, False))


def _agrees(device: torch.device, rows: int, width: int) -> bool:
    random = torch.Generator().manual_seed(rows)

    def drawn(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=random).to(device=device, dtype=dtype)

    tokens, depths = drawn(9, rows, width), drawn(4, rows, width)
    cells, seq_lens = drawn(2, rows, width, width, dtype=torch.bool), drawn(2500, rows) + 1
    roots, lens = drawn(99, rows, 4), drawn(4, rows, dtype=torch.int32) + 1
    total = int(seq_lens.sum())
    for dtype, some_lens in _ROOTS_AND_LENS:
        for prefix in (total, None):
            results = []
            for function in (_with_torch, _with_kernel):
                parts = tokens.clone(), depths.clone(), cells.clone()
                mask = function(*parts, seq_lens, roots.to(dtype), lens if some_lens else None, 1500, prefix)
                results.append([*parts, mask[: width * (total + rows * width)]])
            if not all(torch.equal(one, other) for one, other in zip(*results, strict=True)):
                return False
    return True
