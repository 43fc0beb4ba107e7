"""From the arrays of a step's draft trees to the tensors that SGLang's verification reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from agentspec.draft_tree import TreeArrays


@dataclass(frozen=True, slots=True)
class VerifyTensors:
    """One step's trees on the device; b rows of `width` nodes, flattened where SGLang wants them flat."""

    tokens: torch.Tensor  # int64 [b * width]
    positions: torch.Tensor  # int64 [b * width]
    retrieve_index: torch.Tensor  # int64 [b, width], b * width + node
    next_token: torch.Tensor  # int64 [b, width], first child or -1
    next_sibling: torch.Tensor  # int64 [b, width], next child of the same parent or -1
    mask: torch.Tensor  # bool, flat: width x width a row, or width x (seq_len + width) with the prefix


def verify_tensors(
    arrays: TreeArrays,
    seq_lens: NDArray[np.int64],
    *,
    max_position: int,
    full_mask: bool,
    device: torch.device | str,
) -> VerifyTensors:
    """Builds the tensors with one host-to-device copy for the integers and one for the mask.

    Args:
        arrays: b trees, padded to one width.
        seq_lens: tokens in the KV cache, one a row, on the host.
        max_position: last position the model knows; nodes past it can only be padding and are clamped.
        full_mask: whether the mask covers the prefix too (CUDA backends) or the draft alone (CPU).
        device: where the model runs.
    """
    rows, width = arrays.tokens.shape
    positions = np.minimum(arrays.depths + seq_lens[:, None], max_position)
    index = np.arange(rows * width, dtype=np.int64).reshape(rows, width)
    packed = torch.from_numpy(np.stack([arrays.tokens, positions, index, arrays.next_token, arrays.next_sibling]))
    cells = torch.from_numpy(np.ascontiguousarray(arrays.mask))
    on_host = torch.device(device).type == "cpu"
    if not on_host:
        packed, cells = packed.pin_memory(), cells.pin_memory()
    packed, cells = packed.to(device, non_blocking=True), cells.to(device, non_blocking=True)
    return VerifyTensors(
        tokens=packed[0].flatten(),
        positions=packed[1].flatten(),
        retrieve_index=packed[2],
        next_token=packed[3],
        next_sibling=packed[4],
        mask=_with_prefix(cells, seq_lens) if full_mask else cells.flatten(),
    )


def _with_prefix(cells: torch.Tensor, seq_lens: NDArray[np.int64]) -> torch.Tensor:
    """Puts the width x width blocks of `cells` behind rows of ones that cover each request's prefix.

    Row b of the flat result holds width lines of seq_lens[b] + width cells and starts at
    width * sum(seq_lens[:b]) + b * width * width. Built by one fill and one scatter for the whole batch.
    """
    rows, width, _ = cells.shape
    total = width * int(seq_lens.sum()) + rows * width * width
    mask = torch.ones(total, dtype=torch.bool, device=cells.device)
    before = np.concatenate([[0], np.cumsum(seq_lens)[:-1]]) * width + np.arange(rows) * width * width
    lines = before[:, None] + np.arange(width)[None, :] * (seq_lens + width)[:, None] + seq_lens[:, None]
    first_cells = torch.from_numpy(lines)
    if cells.device.type != "cpu":
        first_cells = first_cells.pin_memory()
    first_cells = first_cells.to(cells.device, non_blocking=True)
    columns = torch.arange(width, device=cells.device)
    mask[(first_cells[:, :, None] + columns).flatten()] = cells.flatten()
    return mask


def grammar_mask(arrays: TreeArrays) -> NDArray[np.bool_]:
    """The mask without padding's line to the root, so that no grammar is walked through padding."""
    mask = arrays.mask.copy()
    padding = np.arange(mask.shape[1])[None, :] >= arrays.num_nodes[:, None]
    mask[:, :, 0] &= ~padding
    return mask
