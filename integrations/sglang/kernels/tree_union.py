"""Unites suffix drafts and the draft model's trees on the device: one Triton kernel on a GPU.

The host launches it behind the draft model's passes, whose trees it need not wait for. So it can launch the verification
too while the passes run. Nodes are taken from both trees in the order of their estimates: the rule INTERLEAVE of
agentspec/native/drafting/tree_union.h. A report of what was made travels to the host beside the accepted tokens.

The suffix drafts of b rows with n nodes in total travel to the device as they are, in one array of integers:

    offsets [b + 1] | rooms [b] | wanted [b] | tokens [n] | parents [n] | estimates [n], bit by bit

The last three may have more room than the drafts have nodes, because a copy is launched before the drafts are made.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentspec import _core
from agentspec.drafts import DraftBatch, Source, TreeBuffers, build_tree_arrays
from agentspec.scheduling.hybrid import UnitedTrees

logger = logging.getLogger("agentspec")

MOST_WIDTH = 64
"""The most nodes of a row that the kernel makes. It keeps the ancestors of a node in an integer."""


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """The draft model's trees of b rows on the device, as in ModelTrees."""

    parents: torch.Tensor  # int64 [b, groups]
    chosen: torch.Tensor  # int64 [b, n]
    tokens: torch.Tensor  # integer [b, n]
    estimates: torch.Tensor  # float32 [b, n]
    topk: int

    def to(self, device: torch.device) -> ModelTensors:
        parents, chosen = self.parents.to(device), self.chosen.to(device)
        return ModelTensors(parents, chosen, self.tokens.to(device), self.estimates.to(device), self.topk)


@dataclass(frozen=True, slots=True)
class UnionLimits:
    """What bounds the united trees."""

    width: int
    """Number of nodes per row after padding, its root included, at most MOST_WIDTH."""
    min_estimate: float
    """The draft model's nodes with smaller estimates are left out. A number of single precision."""
    factor: float
    """The draft model's estimates are multiplied by it and capped at 1."""
    trees: bool = True
    """If not, the drafts of both are chains, and a row gets the one that promises more."""


def num_integers(rows: int, nodes: int) -> int:
    """The length of an array that pack() writes."""
    return 3 * rows + 1 + 3 * nodes


def pack(drafts: DraftBatch, rooms: NDArray[np.int32], wanted: NDArray[np.bool_], out: NDArray[np.int32]) -> int:
    """Writes suffix drafts to `out`, as described above, and returns how many elements that takes.

    Args:
        drafts: Of b rows.
        rooms: int32[b], maximum number of nodes of each row, its root not counted. Padding follows.
        wanted: bool[b], the rows whose drafts have nodes of the draft model.
        out: Has room for num_integers(b, n).
    """
    rows = len(drafts)
    at = 0
    n = int(drafts.offsets[rows])
    parts = (drafts.offsets, rooms, wanted, drafts.tokens[:n], drafts.parents[:n], drafts.estimates[:n].view(np.int32))
    for part in parts:
        out[at : at + len(part)] = part
        at += len(part)
    return at


def unite_on_device(
    packed: torch.Tensor,
    nodes: int,
    model: ModelTensors,
    limits: UnionLimits,
    tokens: torch.Tensor,
    depths: torch.Tensor,
    next_token: torch.Tensor,
    next_sibling: torch.Tensor,
    cells: torch.Tensor,
    report: torch.Tensor,
) -> None:
    """Writes the trees to verify, as TreeArrays describes them, in rows of `limits.width` nodes.

    Args:
        packed: int32, what pack() or a DraftingStep wrote, with room for `nodes` nodes.
        model: The draft model's trees of the same b rows.
        tokens, depths, next_token, next_sibling: int64[b, width], written.
        cells: bool[b, width, width], the tree masks, written.
        report: int64[b, report_width(n)] for n chosen candidates, written; unpack() reads it.
    """
    unite = _with_kernel if packed.is_cuda else _on_host
    unite(packed, nodes, model, limits, tokens, depths, next_token, next_sibling, cells, report)


def report_width(num_chosen: int) -> int:
    """The number of columns of a report: 3, and then the tokens, the parents and the estimates of the draft model's
    nodes."""
    return 3 + 3 * num_chosen


def unpack(report: NDArray[np.int64]) -> UnitedTrees:
    """Reads the report of b rows, int64[b, report_width(n)]."""
    rows, n = len(report), (report.shape[1] - 3) // 3
    tokens, parents = np.full((2, rows, 1 + n), -1, np.int32)
    estimates = np.zeros((rows, 1 + n), np.float32)
    tokens[:, 1:], parents[:, 1:] = report[:, 3 : 3 + n], report[:, 3 + n : 3 + 2 * n]
    estimates[:, 1:] = report[:, 3 + 2 * n :].astype(np.int32).view(np.float32)
    num_nodes = report[:, 0].astype(np.int32)
    return UnitedTrees(num_nodes, report[:, 1] != 0, report[:, 2] != 0, tokens, parents, estimates)


def _on_host(packed: torch.Tensor, nodes: int, model: ModelTensors, limits: UnionLimits, *out: torch.Tensor) -> None:
    """The kernel's definition."""
    rows, width = len(model.chosen), limits.width
    integers = packed.numpy()
    offsets, rooms, wanted = np.split(integers[: 3 * rows + 1], [rows + 1, 2 * rows + 1])
    rooms = np.minimum(rooms, width - 1)
    n = int(offsets[rows])
    suffix = np.ascontiguousarray(integers[3 * rows + 1 : num_integers(rows, nodes)].reshape(3, nodes)[:, :n])
    united = _core.unite_trees(
        offsets,
        suffix[0],
        suffix[1],
        suffix[2].view(np.float32),
        np.zeros(n, np.uint8),
        np.zeros(rows, np.int32),
        model.parents.contiguous().numpy(),
        model.chosen.contiguous().numpy(),
        model.tokens.to(torch.int64).contiguous().numpy(),
        model.estimates.contiguous().numpy(),
        model.topk,
        wanted.astype(np.bool_),
        rooms,
        _core.UnionRule.INTERLEAVE,
        limits.trees,
        max(width - 1, 1),
        limits.min_estimate,
        limits.factor,
    )
    drafts = DraftBatch(*united[:7])
    kept = np.minimum(np.diff(drafts.offsets) - 1, rooms)
    arrays = build_tree_arrays(drafts, width, TreeBuffers(rows, width, np.empty), num_drafted=kept)
    first = drafts.sources[drafts.offsets[:-1] + (kept > 0)] == Source.MODEL
    report = _model_report(model, limits, wanted, np.stack([kept, first, united[11] | (wanted == 0)], axis=1))
    made = (arrays.tokens, arrays.depths, arrays.next_token, arrays.next_sibling, arrays.mask, report)
    for tensor, array in zip(out, made, strict=True):
        tensor.copy_(torch.from_numpy(array))


def _model_report(
    model: ModelTensors, limits: UnionLimits, wanted: NDArray[np.int32], columns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A report: its first columns, int64[b, 3], and the draft model's nodes."""
    chosen, estimates = model.chosen.numpy(), model.estimates.contiguous().numpy()
    kept = (estimates >= np.float32(limits.min_estimate)) & (wanted[:, None] != 0)
    tokens = np.where(kept, model.tokens.numpy(), -1)
    groups = chosen // model.topk
    parents = np.full(chosen.shape, -1, np.int64)
    if model.parents.shape[1]:
        last = model.parents.shape[1] - 1
        parents = np.where(groups > 0, np.take_along_axis(model.parents.numpy(), np.minimum(groups, last), 1), -1)
    places = (chosen[:, None, :] == parents[:, :, None]) * np.arange(1, chosen.shape[1] + 1)
    bits = np.where(kept, np.minimum(estimates, 1.0), 0.0).astype(np.float32).view(np.int32)
    return np.concatenate([columns, tokens, np.where(kept, places.sum(axis=2), 0), bits], axis=1)


def _with_kernel(
    packed: torch.Tensor, nodes: int, model: ModelTensors, limits: UnionLimits, *out: torch.Tensor
) -> None:
    rows, num_chosen = model.chosen.shape
    parents, chosen = model.parents.contiguous(), model.chosen.contiguous()
    tokens, estimates = model.tokens.contiguous(), model.estimates.contiguous()
    *arrays, cells, report = out
    _compiled()[(rows,)](
        packed, parents, chosen, tokens, estimates, *arrays, cells.view(torch.uint8), report,
        rows, nodes, parents.shape[1], num_chosen, model.topk, limits.width, limits.min_estimate, limits.factor,
        int(not limits.trees),
        # One value each, so that nothing is compiled while a server runs.
        BLOCK=MOST_WIDTH, MODEL_BLOCK=MOST_WIDTH,
        # Each node of the loop takes a dozen reductions, which need no barriers within one warp.
        num_warps=1,
    )  # fmt: skip


@functools.cache
def _compiled() -> Any:
    """The kernel. It runs one program for each row. Imports Triton."""
    import triton
    import triton.language as tl

    # Without this, Triton would compile further kernels for values of 1, for multiples of 16 and for tensors whose memory
    # begins at a multiple of 16 bytes. Where a tensor begins depends on the shape of the step.
    @triton.jit(  # type: ignore[untyped-decorator]
        do_not_specialize=["rows", "nodes", "groups", "num_chosen", "topk", "width", "min_estimate", "factor", "chains"],
        do_not_specialize_on_alignment=[
            "packed", "parents", "chosen", "model_tokens", "model_estimates", "tokens", "depths", "next_token",
            "next_sibling", "cells", "report",
        ],
    )  # fmt: skip
    def union_kernel(  # type: ignore[no-untyped-def]
        packed, parents, chosen, model_tokens, model_estimates, tokens, depths, next_token, next_sibling, cells, report,
        rows, nodes, groups, num_chosen, topk, width, min_estimate, factor, chains,
        BLOCK: tl.constexpr, MODEL_BLOCK: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        node = tl.arange(0, BLOCK).to(tl.int64)
        item = tl.arange(0, MODEL_BLOCK).to(tl.int64)
        nowhere = tl.full((), -1, tl.int64)

        # The suffix draft. Node 0 is the root.
        first = tl.load(packed + row).to(tl.int64)
        room = tl.minimum(tl.load(packed + rows + 1 + row).to(tl.int64), width - 1)
        num_own = tl.minimum(tl.load(packed + row + 1).to(tl.int64) - first, room + 1)
        own = packed + 3 * rows + 1 + first + node
        own_tokens = tl.load(own, mask=node < num_own, other=-1).to(tl.int64)
        own_parents = tl.load(own + nodes, mask=node < num_own, other=-1).to(tl.int64)
        own_estimates = tl.load(own + 2 * nodes, mask=node < num_own, other=0).to(tl.float32, bitcast=True)

        # The draft model's candidates.
        num_items = tl.load(packed + 2 * rows + 1 + row).to(tl.int64) * num_chosen
        is_item = item < num_items
        at = row * num_chosen + item
        numbers = tl.load(chosen + at, mask=is_item, other=-2).to(tl.int64)
        items_tokens = tl.load(model_tokens + at, mask=is_item, other=-2).to(tl.int64)
        given = tl.load(model_estimates + at, mask=is_item, other=-1.0)
        likely = tl.minimum(given, 1.0)
        scaled = tl.minimum(likely * factor, 1.0)
        group = numbers // topk
        has_parent = is_item & (group > 0)
        item_parents = tl.load(parents + row * groups + group, mask=has_parent, other=-1).to(tl.int64)
        # Written so that an estimate that is NaN is left out too.
        is_likely = is_item & (given >= min_estimate)
        left = is_likely.to(tl.int64)

        # Of two chains, only the one that promises more is taken. The sums are made one by one, as the host makes them.
        own_sum = tl.full((), 0.0, tl.float32)
        item_sum = tl.full((), 0.0, tl.float32)
        for place in range(chains * room):
            own_sum += tl.sum(tl.where(node == place + 1, own_estimates, 0.0))
            item_sum += tl.sum(tl.where((item == place) & is_likely, scaled, 0.0))
        is_better = item_sum > own_sum
        num_own = tl.where((chains > 0) & is_better, 1, num_own)
        num_ignored = tl.where((chains > 0) & (is_better == 0), tl.sum(left), 0)
        left = tl.where(num_ignored > 0, 0, left)

        # The tree that is made, and where the nodes of both drafts are in it. The root is there.
        made_tokens = tl.full((BLOCK,), -1, tl.int64)
        made_parents = tl.full((BLOCK,), -1, tl.int64)
        made_depths = tl.where(node == 0, 0, 1).to(tl.int64)
        children = tl.full((BLOCK,), -1, tl.int64)
        siblings = tl.full((BLOCK,), -1, tl.int64)
        # Padding attends to the root and itself.
        one = tl.full((BLOCK,), 1, tl.int64)
        lines = one | (one << node)
        own_places = tl.where(node == 0, 0, -1).to(tl.int64)
        item_places = tl.full((MODEL_BLOCK,), -1, tl.int64)
        num_made = tl.full((), 1, tl.int64)
        model_first = tl.full((), 0, tl.int64)
        next_own = tl.full((), 1, tl.int64)

        for _ in range(num_own - 1 + tl.sum(left)):
            # The next node of either draft.
            has_own = next_own < num_own
            own_estimate = tl.sum(tl.where(node == next_own, own_estimates, 0.0))
            most = tl.max(tl.where(left > 0, likely, -1.0))
            best = tl.min(tl.where((left > 0) & (likely == most), item, MODEL_BLOCK))
            is_best = item == best
            has_item = best < MODEL_BLOCK
            takes_item = has_item & ((next_own >= num_own) | (tl.sum(tl.where(is_best, scaled, 0.0)) > own_estimate))
            goes_on = (has_own | has_item) & (num_made <= room)
            is_next = node == next_own
            token = tl.where(
                takes_item,
                tl.sum(tl.where(is_best, items_tokens, 0)),
                tl.sum(tl.where(is_next, own_tokens, 0)),
            )
            # The place of its parent.
            above = tl.sum(tl.where(is_best, item_parents, 0))
            item_parent = tl.where(above == -1, 0, tl.max(tl.where(is_item & (numbers == above), item_places, nowhere)))
            above = tl.sum(tl.where(is_next, own_parents, 0))
            own_parent = tl.sum(tl.where(node == above, own_places, 0))
            parent = tl.where(takes_item, item_parent, own_parent)
            is_valid = goes_on & (parent >= 0)
            # The place of the node itself: where its token already is below that parent, or the next one.
            is_child = (made_parents == parent) & (node < num_made) & (node > 0)
            found = tl.max(tl.where(is_child & (made_tokens == token), node, nowhere))
            last_child = tl.max(tl.where(is_child, node, nowhere))
            is_new = is_valid & (found < 0)
            place = tl.where(found < 0, num_made, found)
            is_here = (node == num_made) & is_new
            made_tokens = tl.where(is_here, token, made_tokens)
            made_parents = tl.where(is_here, parent, made_parents)
            made_depths = tl.where(is_here, tl.sum(tl.where(node == parent, made_depths, 0)) + 1, made_depths)
            lines = tl.where(is_here, tl.sum(tl.where(node == parent, lines, 0)) | (one << node), lines)
            children = tl.where((node == parent) & is_new & (last_child < 0), num_made, children)
            siblings = tl.where((node == last_child) & is_new, num_made, siblings)
            own_places = tl.where(is_next & is_valid & (takes_item == 0), place, own_places)
            item_places = tl.where(is_best & is_valid & takes_item, place, item_places)
            model_first = tl.where(is_new & (num_made == 1) & takes_item, 1, model_first)
            next_own += (goes_on & (takes_item == 0)).to(tl.int64)
            left = tl.where(is_best & takes_item & goes_on, 0, left)
            num_made += is_new.to(tl.int64)

        is_node = node < width
        at = row * width + node
        tl.store(tokens + at, tl.where(node < num_made, tl.maximum(made_tokens, 0), 0), mask=is_node)
        tl.store(depths + at, made_depths, mask=is_node)
        tl.store(next_token + at, children, mask=is_node)
        tl.store(next_sibling + at, siblings, mask=is_node)
        # Column by column: as one matrix, this would be half of the kernel's code.
        for column in range(width):
            tl.store(cells + at * width + column, ((lines >> column) & 1).to(tl.uint8), mask=is_node)

        line = report + row * (3 + 3 * num_chosen)
        tl.store(line, num_made - 1)
        tl.store(line + 1, model_first)
        tl.store(line + 2, (tl.sum(left) + num_ignored == 0).to(tl.int64))
        line += 3 + item
        is_told = item < num_chosen
        tl.store(line, tl.where(is_likely, items_tokens, -1), mask=is_told)
        places = tl.full((MODEL_BLOCK,), 0, tl.int64)
        for place in range(num_items):
            number = tl.load(chosen + row * num_chosen + place).to(tl.int64)
            places += tl.where(item_parents == number, place + 1, 0)
        tl.store(line + num_chosen, tl.where(is_likely, places, 0), mask=is_told)
        bits = tl.where(is_likely, likely, 0.0).to(tl.int32, bitcast=True)
        tl.store(line + 2 * num_chosen, bits.to(tl.int64), mask=is_told)

    return union_kernel


@functools.cache
def can_unite(device: torch.device) -> bool:
    """Whether unite_on_device() makes the right trees on this device. The first call compiles and tests the kernel, so
    make it at the start."""
    try:
        works = all(agrees(unite_on_device, device, seed) for seed in range(8))
    except Exception:
        logger.exception("agentspec unites drafts on the host, because its kernel failed on %s", device)
        return False
    if not works:
        logger.error("agentspec unites drafts on the host, because its kernel makes wrong trees on %s", device)
    return works


def agrees(unite: Callable[..., None], device: torch.device, seed: int) -> bool:
    """Whether a function like unite_on_device() makes the same of drawn drafts on the device as the definition."""
    rng = np.random.default_rng(seed)
    rows, width, trees = int(rng.integers(1, 5)), int(rng.choice([1, 2, 5, 16, 64])), bool(rng.random() < 0.7)
    drafts, model = _drawn_drafts(rng, rows, trees), _drawn_trees(rng, rows, trees)
    rooms = rng.integers(0, width, rows).astype(np.int32)
    packed = np.zeros(num_integers(rows, len(drafts.tokens)), np.int32)
    pack(drafts, rooms, rng.random(rows) < 0.8, packed)
    limits = UnionLimits(width, float(np.float32(0.05)), float(np.float32(rng.uniform(0.5, 1.5))), trees)
    results = []
    for function, place in ((_on_host, torch.device("cpu")), (unite, device)):
        there = model.to(place)
        out = [torch.zeros((rows, width), dtype=torch.int64, device=place) for _ in range(4)]
        cells = torch.zeros((rows, width, width), dtype=torch.bool, device=place)
        report = torch.zeros((rows, report_width(model.chosen.shape[1])), dtype=torch.int64, device=place)
        on_device = torch.from_numpy(packed).to(place)
        function(on_device, len(drafts.tokens), there, limits, *out, cells, report)
        # lay_out() writes the root's token.
        out[0][:, 0] = 0
        results.append([tensor.cpu() for tensor in (*out, cells, report)])
    return all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def _drawn_drafts(rng: np.random.Generator, rows: int, trees: bool) -> DraftBatch:
    """Random trees or chains, likeliest nodes first, of few tokens so that both drafters agree often."""
    sizes = rng.integers(1, 20, rows)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    tokens, parents, estimates = (np.zeros(offsets[-1], kind) for kind in (np.int32, np.int32, np.float32))
    for first, size in zip(offsets.tolist(), sizes.tolist(), strict=False):
        taken: set[tuple[int, int]] = set()
        parents[first], estimates[first] = -1, 1.0
        estimates[first + 1 : first + size] = np.sort(rng.random(size - 1).astype(np.float32))[::-1]
        for node in range(1, size):
            above = range(node) if trees else (node - 1,)
            choices = [(p, t) for p in above for t in range(5) if (p, t) not in taken]
            place = choices[int(rng.integers(len(choices)))]
            taken.add(place)
            parents[first + node], tokens[first + node] = place
    zeros = np.zeros(rows, np.int32)
    return DraftBatch(
        offsets, tokens, parents, estimates, np.zeros(len(tokens), np.uint8), zeros, zeros.astype(np.float32)
    )


def _drawn_trees(rng: np.random.Generator, rows: int, trees: bool) -> ModelTensors:
    """Candidates in groups of topk, as a drafting loop of some passes makes and chooses them. topk is 1 for chains."""
    topk, passes = int(rng.integers(1, 4)) if trees else 1, int(rng.integers(1, 5))
    groups = 1 + topk * (passes - 1)
    count = int(rng.integers(1, topk * groups + 1))
    parents, chosen, tokens, estimates = [], [], [], []
    for _ in range(rows):
        above = np.full(groups, -1, np.int64)
        chances = np.zeros(topk * groups, np.float32)
        drawn = np.zeros(topk * groups, np.int64)
        for group in range(groups):
            if group:
                # One of the candidates of the pass before, each of which is continued once.
                first = 0 if group <= topk else 1 + ((group - 1) // topk - 1) * topk
                last = 1 if group <= topk else first + topk
                untouched = np.setdiff1d(np.arange(first * topk, last * topk), above)
                above[group] = rng.choice(untouched)
            whole = 1.0 if above[group] < 0 else chances[above[group]]
            place = slice(group * topk, (group + 1) * topk)
            chances[place] = whole * np.sort(rng.random(topk).astype(np.float32))[::-1]
            drawn[place] = rng.permutation(5)[:topk]
        best = np.sort(np.argsort(-chances, kind="stable")[:count])
        parents.append(above)
        chosen.append(best)
        tokens.append(drawn[best])
        estimates.append(chances[best])

    def stacked(parts: list[NDArray[Any]]) -> torch.Tensor:
        return torch.from_numpy(np.stack(parts))

    return ModelTensors(stacked(parents), stacked(chosen), stacked(tokens), stacked(estimates), topk)
