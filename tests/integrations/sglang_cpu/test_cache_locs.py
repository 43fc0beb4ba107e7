"""Slot bookkeeping and KV caches, compared with their definitions as Python loops."""

from __future__ import annotations

import pytest
from every import every

torch = pytest.importorskip("torch", reason="pip install torch")

from agentspec.integrations.sglang_cpu import cache_locs
from agentspec.integrations.sglang_cpu.cache_locs import copy_all_layer_kv_cache_cpu

WIDTH = 24


@pytest.fixture(params=range(4))
def drawn(request):
    generator = torch.Generator().manual_seed(request.param)
    batch = 1 + request.param
    start = torch.randint(0, 12, (batch,), generator=generator)
    return {
        "table": torch.randint(0, 999, (6, WIDTH), generator=generator, dtype=torch.int32),
        "rows": torch.randperm(6, generator=generator)[:batch],
        "start": start,
        "end": start + torch.randint(0, 8, (batch,), generator=generator),
    }


def windows(drawn):
    for row, start, end in zip(drawn["rows"].tolist(), drawn["start"].tolist(), drawn["end"].tolist(), strict=True):
        yield from ((row, column) for column in range(start, end))


def test_extend_locs_reads_the_windows_one_after_the_other(drawn):
    expected = [int(drawn["table"][cell]) for cell in windows(drawn)]
    out = torch.full((50,), -7)
    cache_locs.assign_extend_cache_locs_cpu(drawn["rows"], drawn["table"], drawn["start"], drawn["end"], out, WIDTH)
    assert out.tolist() == expected + [-7] * (50 - len(expected))


def test_req_to_token_writes_the_windows_and_nothing_else(drawn):
    slots = torch.randint(1000, 2000, (60,))
    expected = drawn["table"].clone()
    for cell, slot in zip(windows(drawn), slots.tolist(), strict=False):
        expected[cell] = slot
    cache_locs.assign_req_to_token_pool_cpu(drawn["rows"], drawn["table"], drawn["start"], drawn["end"], slots, WIDTH)
    assert torch.equal(drawn["table"], expected)


@every(("topk", "steps"), [(1, 1), (2, 3), (4, 2)])
def test_draft_locs_follow_the_sequence(drawn, topk, steps):
    out = torch.empty(len(drawn["rows"]) * topk * steps, dtype=torch.long)
    cache_locs.assign_draft_cache_locs_contiguous_cpu(
        drawn["rows"], drawn["table"], drawn["start"], out, WIDTH, topk, steps
    )
    expected = [
        int(drawn["table"][row, start + i])
        for row, start in zip(drawn["rows"].tolist(), drawn["start"].tolist(), strict=True)
        for i in range(topk * steps)
    ]
    assert out.tolist() == expected


@pytest.mark.parametrize(("start", "end"), [([3], [2]), ([-1], [2]), ([20], [WIDTH + 1])])
def test_windows_outside_of_the_table_are_refused(start, end):
    with pytest.raises(ValueError, match="in order within"):
        cache_locs.assign_extend_cache_locs_cpu(
            torch.tensor([0]),
            torch.zeros(1, WIDTH).int(),
            torch.tensor(start),
            torch.tensor(end),
            torch.zeros(9),
            WIDTH,
        )


def test_accepted_slots_move_to_the_front():
    index = torch.tensor([[0, 2, -1], [3, -1, -1], [6, 7, 8]], dtype=torch.int32)
    slots = torch.arange(100, 109)
    out = torch.zeros(9, dtype=torch.long)
    cache_locs.fill_accept_out_cache_loc_cpu(index, slots, out)
    assert out.tolist() == [100, 102, 103, 106, 107, 108, 0, 0, 0]


def move(buffers, targets, sources):
    copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64),
        torch.tensor([buffer[0].numel() * buffer.element_size() for buffer in buffers]),
        torch.tensor(targets, dtype=torch.long),
        torch.tensor(sources, dtype=torch.long),
    )


@pytest.mark.parametrize("seed", range(4))
def test_every_buffer_is_moved_and_nothing_else_changes(seed):
    generator = torch.Generator().manual_seed(seed)
    buffers = [
        torch.randn(40, 2, 4, generator=generator),
        torch.randn(40, 3, generator=generator).bfloat16(),
        torch.randint(0, 255, (40, 7), generator=generator, dtype=torch.uint8),
    ]
    # Sources and targets overlap, so that a source is overwritten before or after it is read.
    targets = torch.randperm(12, generator=generator)[:8].tolist()
    sources = torch.randint(0, 12, (8,), generator=generator).tolist()
    expected = [buffer.clone() for buffer in buffers]
    for old, new in zip(buffers, expected, strict=True):
        for target, source in zip(targets, sources, strict=True):
            new[target] = old[source].clone()
    move(buffers, targets, sources)
    for got, wanted in zip(buffers, expected, strict=True):
        assert torch.equal(got, wanted)


def test_padding_that_maps_a_slot_to_itself_is_harmless():
    buffer = torch.arange(10.0)[:, None].clone()
    move([buffer], [3, 0, 0, 0], [7, 0, 0, 0])
    assert buffer.flatten().tolist() == [0, 1, 2, 7, 4, 5, 6, 7, 8, 9]


def test_negative_slots_are_refused_before_anything_is_written():
    buffer = torch.arange(10.0)[:, None].clone()
    with pytest.raises(ValueError, match="at least 0; got -1"):
        move([buffer], [3, -1], [7, 2])
    assert buffer.flatten().tolist() == list(range(10))


def test_a_missing_buffer_is_refused():
    with pytest.raises(ValueError, match="address"):
        copy_all_layer_kv_cache_cpu(torch.tensor([0]), torch.tensor([4]), torch.tensor([1]), torch.tensor([2]))


@pytest.mark.parametrize(("targets", "sources"), [([1], [1, 2]), ([1, 2], [1])])
def test_unequal_lengths_are_refused(targets, sources):
    with pytest.raises(ValueError, match="one source a target"):
        move([torch.zeros(4, 1)], targets, sources)
