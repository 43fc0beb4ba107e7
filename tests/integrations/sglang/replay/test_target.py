"""Slots and requests in a scheduler, without a model."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.sglang
if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

from agentspec.integrations.sglang.replay.target import ReplayTarget
from agentspec.integrations.sglang.replay.wire import WIRE_KEY, packed

END, VOCABULARY = 2, 40


class _Mode:
    def __init__(self, name: str) -> None:
        self.name = name

    def is_extend(self) -> bool:
        # In SGLang, verification counts as extend.
        return self.name in ("extend", "verify")

    def is_target_verify(self) -> bool:
        return self.name == "verify"


def _request(rid: str, slot: int, prompt: int, answer: list[int] | None) -> SimpleNamespace:
    custom = None if answer is None else {WIRE_KEY: packed(answer, END)}
    request = SimpleNamespace(
        rid=rid, req_pool_idx=slot, origin_input_ids=[9] * prompt, output_ids=[], finished_len=None, is_done=False
    )
    request.sampling_params = SimpleNamespace(custom_params=custom)
    request.finished = lambda: request.is_done
    return request


def _runner(*, is_draft: bool = False) -> SimpleNamespace:
    pool = SimpleNamespace(req_to_token=torch.zeros(4, 8, dtype=torch.int32))
    server_args = SimpleNamespace(enable_metrics=False)
    return SimpleNamespace(is_draft_worker=is_draft, req_to_token_pool=pool, server_args=server_args)


def _admit(target: ReplayTarget, runner: Any, *requests: Any) -> None:
    batch = SimpleNamespace(forward_mode=_Mode("extend"), reqs=list(requests))
    target.admit(SimpleNamespace(model_runner=runner), batch)


def _written(target: ReplayTarget, runner: Any, slot: int, seq_len: int) -> int:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 1] = 1.0
    forward = SimpleNamespace(
        forward_mode=_Mode("decode"), req_pool_indices=torch.tensor([slot]), seq_lens=torch.tensor([seq_len])
    )
    output = SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits))
    target.force(runner, output, forward)
    return int(logits.argmax())


def test_a_slot_holds_the_answer_of_the_request_that_was_prefilled_last() -> None:
    target, runner = ReplayTarget(), _runner()
    first, second, free = _request("a", 1, 5, [11, 12]), _request("b", 1, 6, [21]), _request("c", 1, 3, None)
    _admit(target, runner, first)
    # This is the second chunk of a prompt.
    _admit(target, runner, first)
    assert [_written(target, runner, 1, n) for n in (4, 5, 6, 7, 8)] == [1, 11, 12, END, END]
    assert _written(target, runner, 0, 5) == 1
    _admit(target, runner, second)
    assert [_written(target, runner, 1, n) for n in (5, 6, 7)] == [1, 21, END]
    _admit(target, runner, free)
    assert [_written(target, runner, 1, n) for n in (3, 6, 7)] == [1, 1, 1]
    # The request is back after a retraction, with a part of its answer written.
    first.output_ids = [11]
    first.req_pool_idx = 2
    _admit(target, runner, first)
    assert [_written(target, runner, 2, n) for n in (5, 6, 7)] == [11, 12, END]
    described = target.describe()
    assert (described["forced_requests"], described["free_prefills"], described["open_requests"]) == (2, 1, 2)


def test_the_drafter_is_left_alone() -> None:
    target, runner, drafter = ReplayTarget(), _runner(), _runner(is_draft=True)
    _admit(target, drafter, _request("a", 1, 5, [11]))
    assert target.describe()["forced_requests"] == 0
    _admit(target, runner, _request("a", 1, 5, [11]))
    assert _written(target, drafter, 1, 5) == 1
    assert _written(target, runner, 1, 5) == 11


@pytest.mark.parametrize(
    ("output", "finished_len", "diverged"),
    [([11, 12, END], None, 0), ([11], None, 0), ([11, 12, END, 30], 3, 0), ([11, 13], None, 1), ([11, 12, 5], None, 1)],
    ids=["whole", "cut", "with a rest behind its end", "another token", "no end"],
)
def test_finished_outputs_are_compared(output: list[int], finished_len: int | None, diverged: int) -> None:
    target, runner = ReplayTarget(), _runner()
    request = _request("a", 1, 5, [11, 12])
    _admit(target, runner, request)
    request.output_ids, request.finished_len, request.is_done = output, finished_len, True
    described = target.describe()
    assert (described["finished"], described["diverged"], described["open_requests"]) == (1, diverged, 0)
    assert described["forced_tokens"] == (finished_len or len(output))
