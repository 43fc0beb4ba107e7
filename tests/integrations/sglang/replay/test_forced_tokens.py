"""Compares the table of forced tokens with a dictionary; logits change only where an answer is forced."""

from __future__ import annotations

import importlib.util
import random

import pytest

pytestmark = pytest.mark.sglang
if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from agentspec.integrations.sglang.replay.forced_tokens import ForcedTokens

_VOCABULARY = 50


def _logits(rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, _VOCABULARY, generator=torch.Generator().manual_seed(rows)).to(dtype)


def test_drawn_writes_and_look_ups_agree_with_a_dictionary() -> None:
    rng = random.Random(2)
    table, known = ForcedTokens(6, "cpu"), dict[int, tuple[int, list[int], int]]()
    for _ in range(300):
        slot = rng.randrange(6)
        if rng.random() < 0.3:
            table.free(slot)
            known.pop(slot, None)
        else:
            known[slot] = rng.randrange(20), [rng.randrange(_VOCABULARY) for _ in range(rng.choice([0, 1, 5, 33]))], 7
            table.write(slot, *known[slot])
        slots = torch.tensor([rng.randrange(6) for _ in range(10)])
        positions = torch.tensor([rng.randrange(60) for _ in range(10)])
        expected = []
        for s, p in zip(slots.tolist(), positions.tolist(), strict=True):
            begin, answer, end = known.get(s, (1 << 30, [], 0))
            i = p - begin
            expected.append(-1 if i < 0 else answer[i] if i < len(answer) else end)
        assert table.look_up(slots, positions).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_only_rows_with_an_answer_change(dtype: torch.dtype) -> None:
    table = ForcedTokens(3, "cpu")
    table.write(0, 10, [4, 5], 1)
    logits = _logits(4, dtype)
    before = logits.clone()
    # The rows: the prompt's last token, a position after the answer's end, a free slot, and a position in the prompt.
    table.force(logits, torch.tensor([0, 0, 2, 0]), torch.tensor([9, 30, 9, 3]))
    assert logits[:2].argmax(-1).tolist() == [4, 1]
    assert torch.equal(logits[2:], before[2:])
    hot = torch.softmax(logits[:2].float() / 2.0, -1)
    assert hot.max(-1).values.tolist() == [1.0, 1.0]


@pytest.mark.gpu
def test_nothing_waits_for_a_gpu() -> None:
    table = ForcedTokens(4, "cuda")
    logits = torch.zeros(8, _VOCABULARY, device="cuda")
    slots, positions = torch.arange(4, device="cuda").repeat_interleave(2), torch.arange(8, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for slot in range(4):
            table.write(slot, slot, [7, 8, 9] * 20, 2)
        table.free(3)
        table.force(logits, slots, positions)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert logits.argmax(-1).tolist() == [8, 9, 8, 9, 8, 9, 0, 0]
