"""Compares the tensors of a step with their definition, row by row."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from agentspec import ConfigError, DraftBatch, Source, TreeBuffers, build_tree_arrays

torch = pytest.importorskip("torch", reason="needs torch: run `make setup`")
from agentspec.integrations.sglang.drafting import verify_input
from agentspec.integrations.sglang.drafting.verify_input import PARTS, VerifyStaging, VerifyTensors, grammar_mask
from agentspec.integrations.sglang.kernels.tree_union import ModelTensors, UnionLimits

#   row 0:   7 ─┬─ 8 ── 9        row 1:   5 (its root alone)
#               └─ 4
BATCH = DraftBatch(
    offsets=np.array([0, 4, 5], np.int32),
    tokens=np.array([7, 8, 9, 4, 5], np.int32),
    parents=np.array([-1, 0, 1, 0, -1], np.int32),
    estimates=np.ones(5, np.float32),
    sources=np.array([Source.ROOT, Source.REQUEST, Source.REQUEST, Source.REQUEST, Source.ROOT], np.uint8),
    match_lens=np.array([3, 0], np.int32),
    scores=np.array([2.0, 0.0], np.float32),
)
SEQ_LENS = torch.tensor([3, 1])


def staging(full_mask: bool = False) -> VerifyStaging:
    return VerifyStaging(max_rows=4, max_width=8, max_position=100, full_mask=full_mask, device="cpu", unites=True)


def tensors_of(memory: VerifyStaging, batch: DraftBatch = BATCH, width: int = 4) -> VerifyTensors:
    memory.build(batch, width)
    roots = torch.from_numpy(batch.tokens[batch.offsets[:-1]])
    lens = SEQ_LENS[: len(batch)]
    return memory.tensors(lens, roots[:, None], total=int(lens.sum()))


def test_tokens_positions_links_and_the_trees_mask() -> None:
    tensors = tensors_of(staging())
    assert tensors.tokens.tolist() == [7, 8, 9, 4, 5, 0, 0, 0]
    assert tensors.positions.tolist()[:5] == [3, 4, 5, 4, 1]
    assert tensors.retrieve_index.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert tensors.next_token.tolist() == [[1, 2, -1, -1], [-1] * 4]
    assert tensors.next_sibling.tolist() == [[-1, 3, -1, -1], [-1] * 4]
    assert tensors.mask.tolist() == build_tree_arrays(BATCH, 4).mask.ravel().tolist()


def test_the_full_mask_puts_each_row_s_prefix_before_its_tree() -> None:
    arrays = build_tree_arrays(BATCH, 4)
    expected = []
    for row, seq_len in enumerate(SEQ_LENS.tolist()):
        for node in range(4):
            expected += [True] * seq_len + arrays.mask[row, node].tolist()
    tensors = tensors_of(staging(full_mask=True))
    assert tensors.mask.tolist() == expected
    memory = staging(full_mask=True)
    memory.build(BATCH, 4)
    roomier = memory.tensors(SEQ_LENS, torch.tensor([[7], [5]]), total=100)
    assert roomier.mask.tolist()[: len(expected)] == expected


def test_a_mask_is_no_larger_than_the_attention_backends_buffers() -> None:
    """They have room for texts of all of the context. Upper bounds on the lengths of texts near its end are more."""
    rows, width, context = len(BATCH), 4, 101
    memory = staging(full_mask=True)
    memory.build(BATCH, width)
    lens = torch.tensor([context - 1, context])
    tensors = memory.tensors(lens, torch.tensor([[7], [5]]), total=int(lens.sum()) + 2 * rows * 8)
    assert width * (int(lens.sum()) + rows * width) <= len(tensors.mask) <= rows * width * (context + width)


def test_a_step_s_tensors_hold_until_its_part_of_the_memory_is_used_again() -> None:
    memory = staging()
    first = tensors_of(memory)
    kept = {name: getattr(first, name).clone() for name in VerifyTensors.__slots__}
    other = replace(BATCH, tokens=BATCH.tokens + 60)
    for _ in range(PARTS - 1):
        tensors_of(memory, other)
        for name, value in kept.items():
            assert torch.equal(getattr(first, name), value), name
    assert tensors_of(memory, other).tokens.data_ptr() == first.tokens.data_ptr()


def test_trees_that_are_written_ahead_are_laid_out_as_if_they_were_built() -> None:
    """A step writes the trees to its part of the memory, in turn with steps that are built."""
    memory, new = staging(full_mask=True), staging(full_mask=True)
    roots = torch.tensor([[7], [5]])
    total = int(SEQ_LENS.sum())
    for width in (4, 8, 6, 5):
        trees, _ = memory.memory(memory.ahead())
        written = TreeBuffers(2, width)
        build_tree_arrays(BATCH, width, written)
        trees[: len(written.memory)] = written.memory
        memory.copy_trees(2, width)
        ahead, built = memory.laid_out(2, width, SEQ_LENS, roots, total=total), tensors_of(new, width=width)
        for name in VerifyTensors.__slots__:
            assert torch.equal(getattr(ahead, name), getattr(built, name)), name
        tensors_of(memory, width=7)


def test_drafts_that_are_written_ahead_are_united_with_room_to_spare() -> None:
    """The draft model drafts 8, 3 below the root of row 0, and nothing for row 1, whose suffix draft is its root."""
    memory = staging(full_mask=True)
    model = ModelTensors(
        parents=torch.tensor([[-1, 0], [-1, 0]]),
        chosen=torch.tensor([[0, 1], [0, 1]]),
        tokens=torch.tensor([[8, 3], [8, 3]]),
        estimates=torch.tensor([[0.9, 0.8], [0.9, 0.8]]),
        topk=1,
    )
    width, room = 6, 12
    for _ in range(PARTS + 1):
        _, packed = memory.memory(memory.ahead())
        packed[:] = -99
        packed[:7] = [0, 4, 5, 5, 5, 1, 0]
        for first, part in enumerate((BATCH.tokens, BATCH.parents, BATCH.estimates.view(np.int32))):
            packed[7 + first * room :][:5] = part
        memory.copy_packed(2, width)
        packed[:] = -99  # The device has its copy.
        report = memory.unite(model, UnionLimits(width, 0.0, 1.0))
        tensors = memory.laid_out(2, width, SEQ_LENS, torch.tensor([[7], [5]]), total=int(SEQ_LENS.sum()))
        assert tensors.tokens.tolist() == [7, 8, 9, 4, 3, 0, 5, 0, 0, 0, 0, 0]
        assert tensors.positions.view(2, width)[0, :5].tolist() == [3, 4, 5, 4, 5]
        assert report[:, 0].tolist() == [4, 0], "drafted nodes of each row"


@pytest.mark.parametrize(("num_drafted", "tokens"), [([2, 0], [7, 8, 9, 5, 0, 0]), ([1, 0], [7, 8, 0, 5, 0, 0])])
def test_only_the_nodes_that_are_verified_are_laid_out(num_drafted: list[int], tokens: list[int]) -> None:
    memory = staging()
    arrays = memory.build(BATCH, 3, np.array(num_drafted, np.int32))
    assert arrays.num_nodes.tolist() == [n + 1 for n in num_drafted]
    roots = torch.tensor([[7], [5]])
    assert memory.tensors(SEQ_LENS, roots, total=int(SEQ_LENS.sum())).tokens.tolist() == tokens


def test_a_step_that_is_refused_leaves_the_next_one_its_memory() -> None:
    memory, new = staging(full_mask=True), staging(full_mask=True)
    for num_drafted, width in (([4, 0], 8), ([3, 0], 3), ([3, 0], 9)):
        with pytest.raises(ConfigError):
            memory.build(BATCH, width, np.array(num_drafted, np.int32))
        got, expected = tensors_of(memory), tensors_of(new)
        for name in VerifyTensors.__slots__:
            assert torch.equal(getattr(got, name), getattr(expected, name)), name


def test_what_another_rank_has_built_is_laid_out_alike() -> None:
    first, other = staging(full_mask=True), staging(full_mask=True)
    num_drafted = np.array([2, 0], np.int32)
    first.build(BATCH, 3, num_drafted)
    other.receive(first.built().copy(), 3, num_drafted)
    roots = torch.tensor([[7], [5]])
    one, two = (memory.tensors(SEQ_LENS, roots, total=int(SEQ_LENS.sum())) for memory in (first, other))
    for name in VerifyTensors.__slots__:
        assert torch.equal(getattr(one, name), getattr(two, name)), name
    assert one.tokens.tolist() == [7, 8, 9, 5, 0, 0]
    assert other.arrays.num_nodes.tolist() == [3, 1]


def test_no_grammar_is_walked_through_padding() -> None:
    arrays = build_tree_arrays(BATCH, 4)
    mask = grammar_mask(arrays)
    assert mask[0].tolist() == arrays.mask[0].tolist(), "a full row has no padding"
    for node in (1, 2, 3):
        assert np.flatnonzero(mask[1, node]).tolist() == [node], "padding has no parent"
    assert mask[1, 0, 0]


def test_the_kernel_is_tried_at_the_start_on_the_device_that_steps_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang calls its device `cuda`, and torch calls that of a tensor `cuda:0`."""
    tried: list[torch.device] = []
    monkeypatch.setattr(verify_input, "kernel_works", tried.append)
    monkeypatch.setattr(verify_input, "_Part", lambda *arguments: SimpleNamespace(device=torch.device("cuda:0")))
    VerifyStaging(max_rows=1, max_width=2, max_position=9, full_mask=True, device="cuda")
    assert tried == [torch.device("cuda:0")]
