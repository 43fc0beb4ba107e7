"""The number of threads depends on the work of a forward."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from every import every

from agentspec.integrations.sglang_cpu import threads


@every(
    ("num_tokens", "num_weights", "most", "wanted"),
    [
        (1, 5_000_000, 2, 1),
        (8, 5_000_000, 2, 2),
        (8, 5_000_000, 64, 2),
        (96, 5_000_000, 64, 28),
        (1, 8_000_000_000, 64, 64),
        (0, 5_000_000, 2, 1),
        (200, 8_000_000_000, 1, 1),
    ],
)
def test_threads_follow_the_work(num_tokens, num_weights, most, wanted):
    assert threads.num_threads(num_tokens, num_weights, most) == wanted


@pytest.fixture
def three_threads(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "_most", 3)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_sglangs_forwards_run_on_them_and_what_is_between_on_one(monkeypatch, three_threads):
    used = []

    class ModelRunner:
        model = torch.nn.Linear(1 << 11, 1 << 11, bias=False)

        def forward(self, forward_batch):
            used.append(torch.get_num_threads())
            if forward_batch.fails:
                raise RuntimeError("this forward fails")

    monkeypatch.setitem(sys.modules, "sglang.srt.model_executor.model_runner", SimpleNamespace(ModelRunner=ModelRunner))
    threads.patch_threads()
    threads.patch_threads()
    for tokens in (torch.zeros(4), torch.zeros(8), torch.zeros(800), None):
        ModelRunner().forward(SimpleNamespace(input_ids=tokens, fails=False))
        assert torch.get_num_threads() == 1
    with pytest.raises(RuntimeError, match="fails"):
        ModelRunner().forward(SimpleNamespace(input_ids=torch.zeros(8), fails=True))
    assert used == [1, 2, 3, 3, 2]
    assert torch.get_num_threads() == 1


def test_other_forwards_leave_the_number_as_it_was(three_threads):
    with pytest.raises(RuntimeError, match="fails"), threads.threads_for(8, 1 << 22):
        assert torch.get_num_threads() == 2
        raise RuntimeError("this forward fails")
    assert torch.get_num_threads() == 3
