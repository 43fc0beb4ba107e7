"""How far a drafter has read, and whether it can read on."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from agentspec.integrations.sglang.drafter_states import DrafterStates


def request(rid: str, *, finished: bool = False) -> SimpleNamespace:
    return SimpleNamespace(rid=rid, finished=lambda: finished)


def read(length: int, *holes: int) -> torch.Tensor:
    prefix = torch.ones(length, dtype=torch.bool)
    prefix[list(holes)] = False
    return prefix


def pending(states: DrafterStates, rid: str, seq_len: int) -> tuple[int, bool]:
    missing, fit = states.pending([rid], np.array([seq_len]))
    return int(missing[0]), bool(fit[0])


def test_a_head_reads_on_if_no_hidden_state_is_missing() -> None:
    states = DrafterStates(reads_hidden=True)
    state = states.open(request("a"), 20, read(20))
    assert pending(states, "a", 20) == (0, True)
    assert pending(states, "a", 23) == (3, False), "three tokens came without their hidden states"
    state.keep(torch.zeros(2, 4))
    state.keep(torch.zeros(1, 4))
    assert pending(states, "a", 23) == (3, True)


@pytest.mark.parametrize(("holes", "fit"), [((), True), ((3, 4), True), ((2, 3, 4), False)])
def test_a_head_can_miss_an_eighth_of_a_prompt(holes: tuple[int, ...], fit: bool) -> None:
    states = DrafterStates(reads_hidden=True)
    states.open(request("a"), 16, read(16, *holes))
    assert pending(states, "a", 16) == (0, fit)


def test_a_prompt_that_was_not_read_stays_so() -> None:
    states = DrafterStates(reads_hidden=True)
    states.open(request("a"), 16, read(16, 15)).is_fit = False
    assert pending(states, "a", 16) == (0, False)


def test_a_model_of_its_own_reads_from_the_first_hole_on() -> None:
    states = DrafterStates(reads_hidden=False)
    states.open(request("a"), 16, read(16, 5, 9))
    assert pending(states, "a", 18) == (13, True)
    states.open(request("b"), 16, read(16))
    assert pending(states, "b", 18) == (2, True)


def test_strangers_are_not_drafted_for() -> None:
    states = DrafterStates(reads_hidden=False)
    assert pending(states, "nobody", 5) == (0, False)
    states.open(request("a"), 4, read(4))
    states.forget("a")
    assert pending(states, "a", 5) == (0, False)


def test_requests_that_ended_unseen_are_found_in_time() -> None:
    states = DrafterStates(reads_hidden=False)
    for i in range(1000):
        swept = states.sweep()
        assert all(int(rid) % 10 for rid in swept), "only what is finished"
        states.open(request(str(i), finished=i % 10 > 0), 1, read(1))
    assert len(states) < 520
