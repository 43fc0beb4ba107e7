"""From a step's draft trees to the tensors that SGLang's verification reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentspec.draft_tree import DraftBatch, TreeArrays, TreeBuffers, build_tree_arrays


@dataclass(frozen=True, slots=True)
class VerifyTensors:
    """One step's trees on the device; b rows of `width` nodes, flattened where SGLang wants them flat."""

    tokens: torch.Tensor  # int64 [b * width]
    positions: torch.Tensor  # int64 [b * width]
    retrieve_index: torch.Tensor  # int64 [b, width], b * width + node
    next_token: torch.Tensor  # int64 [b, width], first child or -1
    next_sibling: torch.Tensor  # int64 [b, width], next child of the same parent or -1
    mask: torch.Tensor  # bool, flat: width x width a row, or width x (seq_len + width) with the prefix


class VerifyStaging:
    """Memory that steps' trees are built in and copied to the device from, used again every other step.

        build(drafts, width) ─> arrays in pinned memory ─ tensors(seq_lens) ─> copies on the device

    Tensors are copies also where the device is the CPU, so a step may keep them. Copies to a GPU run beside the host:
    the step after the next one waits for them before it writes to the same memory. It grows with the largest batch.
    """

    def __init__(self, *, max_width: int, max_position: int, full_mask: bool, device: torch.device | str) -> None:
        """Chooses what steps have in common.

        Args:
            max_width: The most nodes a row.
            max_position: Last position the model knows; nodes past it can only be padding and are clamped.
            full_mask: Whether the mask covers the prefix too (CUDA backends) or the draft alone (CPU).
            device: Where the model runs.
        """
        self._max_width = max_width
        self._max_position = max_position
        self._full_mask = full_mask
        self._device = torch.device(device)
        self._halves: list[_Half] = []
        self._max_rows = 0
        self._steps = 0
        self._nodes = torch.empty(0, dtype=torch.int64)

    def build(self, drafts: DraftBatch, width: int) -> TreeArrays:
        """The step's trees, padded to `width`; valid until the next step but one.

        Raises:
            ConfigError: A row has more nodes than `width`, `width` is larger than the largest, or a row is no tree.
        """
        rows = len(drafts)
        if rows > self._max_rows:
            self._grow(rows)
        self._steps += 1
        half = self._half
        half.wait()
        half.arrays = build_tree_arrays(drafts, width, half.buffers)
        return half.arrays

    def tensors(self, seq_lens: NDArray[np.int64]) -> VerifyTensors:
        """What was built last, on the device; `depths` of its arrays become positions.

        Args:
            seq_lens: int64[b] on the host, tokens in the KV cache.
        """
        half = self._half
        arrays = half.arrays
        rows, width = arrays.tokens.shape
        n = rows * width
        positions = arrays.depths
        np.add(positions, seq_lens[:, None], out=positions)
        np.minimum(positions, self._max_position, out=positions)
        integers = self._copied(half.integers[: 4 * n])
        cells = self._copied(half.cells[: n * width])
        if self._full_mask:
            line_starts(seq_lens, width, out=half.lines[:n].numpy().reshape(rows, width))
            mask = _with_prefix(cells, self._copied(half.lines[:n]), width * (int(seq_lens.sum()) + n))
        else:
            mask = cells
        half.record()
        tokens, positions_on_device, next_token, next_sibling = integers.view(4, n).unbind()
        return VerifyTensors(
            tokens=tokens,
            positions=positions_on_device,
            retrieve_index=self._nodes[:n].view(rows, width),
            next_token=next_token.view(rows, width),
            next_sibling=next_sibling.view(rows, width),
            mask=mask,
        )

    @property
    def _half(self) -> _Half:
        return self._halves[self._steps % 2]

    def _copied(self, host: torch.Tensor) -> torch.Tensor:
        return host.to(self._device, non_blocking=True, copy=True)

    def _grow(self, rows: int) -> None:
        # What is still copied from must not be freed.
        for half in self._halves:
            half.wait()
        self._max_rows = 1 << (rows - 1).bit_length()
        self._halves = [_Half(self._max_rows, self._max_width, self._device) for _ in range(2)]
        self._nodes = torch.arange(self._max_rows * self._max_width, device=self._device)


class _Half:
    """The memory of every other step."""

    def __init__(self, max_rows: int, max_width: int, device: torch.device) -> None:
        on_host = device.type == "cpu"

        def allocate(size: int, dtype: type[np.generic]) -> NDArray[Any]:
            kind = torch.from_numpy(np.empty(0, dtype)).dtype
            memory: NDArray[Any] = torch.zeros(size, dtype=kind, pin_memory=not on_host).numpy()
            return memory

        self.buffers = TreeBuffers(max_rows, max_width, allocate)
        self.integers = torch.from_numpy(self.buffers.integers)
        self.cells = torch.from_numpy(self.buffers.mask)
        self.lines = torch.from_numpy(allocate(max_rows * max_width, np.int64))
        self.arrays = self.buffers.arrays(1, 1)
        self._copies = None if on_host else torch.get_device_module(device).Event()

    def record(self) -> None:
        """Marks the end of the copies that were asked for."""
        if self._copies is not None:
            self._copies.record()

    def wait(self) -> None:
        """Waits until all copies that were asked for are made."""
        if self._copies is not None:
            self._copies.synchronize()


def line_starts(seq_lens: NDArray[np.int64], width: int, out: NDArray[np.int64]) -> None:
    """Writes where the tree's cells begin in each line of a full mask, int64[b, width].

    Row b of the flat mask holds width lines of seq_lens[b] + width cells and starts at
    width * sum(seq_lens[:b]) + b * width * width.
    """
    lengths = seq_lens + width
    ends = np.cumsum(lengths)
    first = (ends - lengths) * width + seq_lens
    np.multiply(lengths[:, None], np.arange(width), out=out)
    np.add(out, first[:, None], out=out)


def _with_prefix(cells: torch.Tensor, first_cells: torch.Tensor, size: int) -> torch.Tensor:
    """Puts lines of `width` cells at `first_cells` into a flat mask of `size` ones: one fill, one scatter."""
    mask = torch.ones(size, dtype=torch.bool, device=cells.device)
    columns = torch.arange(len(cells) // len(first_cells), device=cells.device)
    mask[(first_cells[:, None] + columns).flatten()] = cells
    return mask


def grammar_mask(arrays: TreeArrays) -> NDArray[np.bool_]:
    """The mask without padding's line to the root, so that no grammar is walked through padding."""
    mask = arrays.mask.copy()
    padding = np.arange(mask.shape[1])[None, :] >= arrays.num_nodes[:, None]
    mask[:, :, 0] &= ~padding
    return mask
