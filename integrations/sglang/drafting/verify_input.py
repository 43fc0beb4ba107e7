"""Turns the draft trees of a step into the tensors that SGLang's verification reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentspec.drafts import DraftBatch, TreeArrays, TreeBuffers, build_tree_arrays
from agentspec.integrations.sglang.kernels import tree_union
from agentspec.integrations.sglang.kernels.tree_layout import kernel_works, lay_out
from agentspec.integrations.sglang.kernels.tree_union import ModelTensors, UnionLimits, num_integers

PARTS = 3
"""Number of steps whose memory is in use at once."""


@dataclass(frozen=True, slots=True)
class VerifyTensors:
    """The trees of a step on the device: b rows of `width` nodes, flattened where SGLang expects it."""

    tokens: torch.Tensor  # int64 [b * width]
    positions: torch.Tensor  # int64 [b * width]
    retrieve_index: torch.Tensor  # int64 [b, width], b * width + node
    next_token: torch.Tensor  # int64 [b, width], first child or -1
    next_sibling: torch.Tensor  # int64 [b, width], next child of the same parent or -1
    mask: torch.Tensor  # bool, flat: width x width a row, or width x (seq_len + width) with the prefix


class VerifyStaging:
    """Host memory in which the trees of a step are built, and device memory to which they are copied. Three parts of
    both are used in turn.

        build(drafts, width) ─> arrays in pinned memory ─ tensors(seq_lens, roots) ─ one copy ─> the device

    A step in stream order fills the host memory while the device works. It may leave the trees to the device, which then
    unites suffix drafts with the draft model's trees:

        ahead() ─ the step writes ─ copy_trees() ────────> laid_out(seq_lens, roots)
        ahead() ─ the step writes ─ copy_packed() ───────> unite(trees, ...) ─ laid_out(seq_lens, roots)

    The tensors of step N are valid until those of step N + 3 are made. SGLang launches step N + 2 after it has
    processed step N. Copies to a GPU are asynchronous, so step N + 3 waits for those of step N before it writes to the
    same pinned memory, unless it is written in stream order. All memory is made at once, because to pin memory takes some
    milliseconds.
    """

    def __init__(
        self,
        *,
        max_rows: int,
        max_width: int,
        max_position: int,
        full_mask: bool,
        device: torch.device | str,
        unites: bool = False,
    ) -> None:
        """Sets what all steps have in common.

        Args:
            max_position: The last position that the model knows. Nodes past it can only be padding and are clamped.
            full_mask: Whether the mask covers the prefix too (CUDA backends) or only the draft (CPU).
            unites: Whether unite() will be called. It needs memory of its own.
        """
        self._max_width = max_width
        self._max_position = max_position
        self._full_mask = full_mask
        self._device = torch.device(device)
        self._steps = 0
        self._parts = [_Part(max_rows, max_width, self._device, unites) for _ in range(PARTS)]
        # What takes long is done here, so that no request waits for it. A step asks by the device of its tensors, whose name
        # has a number.
        if self._device.type == "cuda":
            kernel_works(self._parts[0].device)

    def build(self, drafts: DraftBatch, width: int, num_drafted: NDArray[np.int32] | None = None) -> TreeArrays:
        """Builds the trees of step N, padded to `width`. They are valid until step N + 3 is built.

        Row i keeps its best num_drafted[i] nodes, its root not counted; None keeps all. Raises ConfigError if a row
        should keep more nodes than `width` or than it has, `width` exceeds `max_width`, or a row is not a tree.
        """
        part = self._next()
        part.arrays = build_tree_arrays(drafts, width, part.buffers, num_drafted=num_drafted)
        return part.arrays

    def built(self) -> NDArray[np.int64]:
        """The trees that were built last, for receive() on other ranks: int64, laid out as TreeBuffers.memory."""
        rows, width = self.arrays.tokens.shape
        return self._part.buffers.memory[: -(-TreeBuffers.num_bytes(rows, width) // 8)]

    def receive(self, built: NDArray[np.int64], width: int, num_drafted: NDArray[np.int32]) -> None:
        """Takes the trees that another rank has built. `width` and num_drafted, int32[b], are those of its build()."""
        part = self._next()
        part.buffers.memory[: len(built)] = built
        part.buffers.num_nodes[: len(num_drafted)] = num_drafted + 1
        part.arrays = part.buffers.arrays(len(num_drafted), width)

    def _next(self) -> _Part:
        """The memory of the step that begins. Waits until the copies from it have ended."""
        self._steps += 1
        self._part.wait()
        return self._part

    def memory(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The host memory of one of the parts: for trees, laid out as TreeBuffers.memory, and for the suffix drafts of a
        device that unites them, laid out as in kernels/tree_union.py for `rows * width` nodes."""
        part = self._parts[index]
        return part.buffers.memory, part.drafts_on_host.numpy()

    def ahead(self) -> int:
        """Takes the part of the step that begins, which the host writes in stream order, and returns its index."""
        self._steps += 1
        return self._steps % PARTS

    def copy_trees(self, rows: int, width: int) -> None:
        """Copies the trees of b rows to the device, on the current stream. They may be written before the stream does
        so."""
        part = self._part
        views = part.views(rows, width)
        views.on_device.copy_(views.on_host, non_blocking=True)
        part.record()

    def copy_packed(self, rows: int, width: int) -> None:
        """Copies the suffix drafts of b rows to the device, as copy_trees() does."""
        part, size = self._part, num_integers(rows, rows * width)
        part.drafts_on_device[:size].copy_(part.drafts_on_host[:size], non_blocking=True)
        part.record()

    def unite(self, model: ModelTensors, limits: UnionLimits) -> torch.Tensor:
        """Lets the device make the trees to verify of the suffix drafts that were copied last. laid_out() completes
        them. `model`: the draft model's trees of the same rows. Returns a report of what the trees hold, which
        tree_union.unpack() reads on the host."""
        part = self._part
        rows = len(model.chosen)
        nodes = rows * limits.width
        views = part.views(rows, limits.width)
        columns = tree_union.report_width(model.chosen.shape[1])
        report = torch.empty((rows, columns), dtype=torch.int64, device=self._device)
        tree_union.unite_on_device(
            part.drafts_on_device[: num_integers(rows, nodes)],
            nodes,
            model,
            limits,
            views.tokens,
            views.positions,
            views.next_token,
            views.next_sibling,
            views.cells,
            report,
        )
        return report

    def on_device(self, rows: int, width: int) -> torch.Tensor:
        """uint8, the memory of the device to which the trees of b rows are copied, or in which they are united."""
        return self._part.views(rows, width).on_device

    def tensors(
        self,
        seq_lens: torch.Tensor,
        roots: torch.Tensor,
        lens: torch.Tensor | None = None,
        *,
        total: int,
    ) -> VerifyTensors:
        """Copies the trees that were built last to the device.

        The position of each root is read on the device only, so a wrong count on the host cannot misplace a tree.

        Args:
            seq_lens: integer[b] on the device, number of tokens in the KV cache.
            roots: integer[b, w] on the device; the root of row i is roots[i, lens[i] - 1].
            lens: integer[b] on the device; None makes roots[i, 0] the root.
            total: At least the sum of `seq_lens`, for the size of a full mask.
        """
        rows, width = self._part.arrays.tokens.shape
        self.copy_trees(rows, width)
        return self.laid_out(rows, width, seq_lens, roots, lens, total=total)

    def laid_out(
        self,
        rows: int,
        width: int,
        seq_lens: torch.Tensor,
        roots: torch.Tensor,
        lens: torch.Tensor | None = None,
        *,
        total: int,
    ) -> VerifyTensors:
        """Completes the trees that were copied or united last; see tensors() for the arguments."""
        views = self._part.views(rows, width)
        mask = lay_out(
            views.tokens,
            views.positions,
            views.cells,
            seq_lens,
            roots,
            lens,
            max_position=self._max_position,
            total=total if self._full_mask else None,
        )
        return VerifyTensors(
            tokens=views.flat_tokens,
            positions=views.flat_positions,
            retrieve_index=views.retrieve_index,
            next_token=views.next_token,
            next_sibling=views.next_sibling,
            # `total` may be more than texts can have. Attention backends have room for texts of all of the context.
            mask=mask[: rows * width * (self._max_position + 1 + width)],
        )

    @property
    def arrays(self) -> TreeArrays:
        """The trees that were built last."""
        return self._part.arrays

    @property
    def _part(self) -> _Part:
        return self._parts[self._steps % PARTS]


@dataclass(frozen=True, slots=True)
class _Views:
    """The parts of a memory that a step of b rows of `width` nodes uses."""

    on_host: torch.Tensor
    """uint8, as TreeBuffers.memory."""
    on_device: torch.Tensor
    """The same on the device. All tensors below are parts of it, except `retrieve_index`."""
    tokens: torch.Tensor  # int64 [b, width]
    positions: torch.Tensor  # int64 [b, width]
    cells: torch.Tensor  # bool [b, width, width]
    flat_tokens: torch.Tensor  # int64 [b * width]
    flat_positions: torch.Tensor  # int64 [b * width]
    next_token: torch.Tensor  # int64 [b, width]
    next_sibling: torch.Tensor  # int64 [b, width]
    retrieve_index: torch.Tensor  # int64 [b, width], b * width + node


class _Part:
    """The memory of every third step."""

    _MOST_VIEWS = 512

    def __init__(self, max_rows: int, max_width: int, device: torch.device, unites: bool) -> None:
        on_host = device.type == "cpu"

        def allocate(size: int, dtype: type[np.generic]) -> NDArray[Any]:
            kind = torch.from_numpy(np.empty(0, dtype)).dtype
            memory: NDArray[Any] = torch.zeros(size, dtype=kind, pin_memory=not on_host).numpy()
            return memory

        self.buffers = TreeBuffers(max_rows, max_width, allocate)
        self.arrays = self.buffers.arrays(1, 1)
        size = tree_union.num_integers(max_rows, max_rows * max_width) if unites else 0
        self.drafts_on_host = torch.zeros(size, dtype=torch.int32, pin_memory=not on_host)
        self.drafts_on_device = torch.empty(size, dtype=torch.int32, device=device)
        self._on_host = torch.from_numpy(self.buffers.memory).view(torch.uint8)
        self._on_device = torch.empty(len(self._on_host), dtype=torch.uint8, device=device)
        self._nodes = torch.arange(max_rows * max_width, device=device)
        self._views: dict[tuple[int, int], _Views] = {}
        self._copies = None if on_host else torch.get_device_module(device).Event()

    @property
    def device(self) -> torch.device:
        return self._on_device.device

    def views(self, rows: int, width: int) -> _Views:
        """The views for steps of this shape. They are made once, because the device waits meanwhile."""
        found = self._views.get((rows, width))
        if found is None:
            if len(self._views) >= self._MOST_VIEWS:
                self._views.clear()
            found = self._views[rows, width] = self._made_views(rows, width)
        return found

    def _made_views(self, rows: int, width: int) -> _Views:
        n, size = rows * width, TreeBuffers.num_bytes(rows, width)
        on_device = self._on_device[:size]
        tokens, positions, next_token, next_sibling = (
            on_device[: 32 * n].view(torch.int64).view(4, rows, width).unbind()
        )
        return _Views(
            on_host=self._on_host[:size],
            on_device=on_device,
            tokens=tokens,
            positions=positions,
            cells=on_device[32 * n :].view(torch.bool).view(rows, width, width),
            flat_tokens=tokens.flatten(),
            flat_positions=positions.flatten(),
            next_token=next_token,
            next_sibling=next_sibling,
            retrieve_index=self._nodes[:n].view(rows, width),
        )

    def record(self) -> None:
        """Marks the end of the copies that were launched."""
        if self._copies is not None:
            self._copies.record()

    def wait(self) -> None:
        """Waits for the copies up to the last record()."""
        if self._copies is not None:
            self._copies.synchronize()


def grammar_mask(arrays: TreeArrays) -> NDArray[np.bool_]:
    """The tree mask, bool[b, width, width], in which padding does not see the root, so that no grammar walks through
    it."""
    mask = arrays.mask.copy()
    padding = np.arange(mask.shape[1])[None, :] >= arrays.num_nodes[:, None]
    mask[:, :, 0] &= ~padding
    return mask
