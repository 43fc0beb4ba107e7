"""What the drafter has read, by slot, and how long work took."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from agentspec.integrations.sglang.device_clock import DeviceClock
from agentspec.integrations.sglang.read_slots import ReadSlots


def test_a_slot_is_read_until_the_target_writes_to_it_again() -> None:
    batch = SimpleNamespace(token_to_kv_pool_allocator=SimpleNamespace(size=8, page_size=1))
    slots = ReadSlots()
    assert not slots.of(torch.tensor([1, 2])).any(), "nothing is read before anything is written"
    slots.written(batch, torch.tensor([1, 2, 8]), read=True)
    slots.written(batch, torch.tensor([2, 3]), read=False)
    assert slots.of(torch.tensor([8, 3, 2, 1], dtype=torch.int32)).tolist() == [True, False, False, True]


def test_the_clock_reports_each_block_that_ended() -> None:
    clock, reported = DeviceClock("cpu"), list[float]()
    with clock.timed(reported.append):
        pass
    with pytest.raises(KeyError), clock.timed(reported.append):
        raise KeyError("the block failed")
    assert len(reported) == 1 and reported[0] >= 0
