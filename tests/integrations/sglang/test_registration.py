"""Registration: what the plugin changes in a process, and when it counts as registered."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agentspec.integrations.sglang import arguments, compat, plugin
from agentspec.integrations.sglang import registration as algorithm


class _Request:
    def __init__(self, rid: str) -> None:
        self.rid = rid


@pytest.mark.parametrize(
    ("marked", "name", "extra"),
    [
        (True, "NGRAM", 16),
        (True, "EAGLE3", 16),
        (True, "STANDALONE", 16),
        (False, "AGENTSPEC", 16),
        (False, "NGRAM", 0),
        (False, "EAGLE3", 0),
        (False, "STANDALONE", 0),
        (False, None, 0),
    ],
)
def test_only_servers_of_agentspec_get_wider_rows(
    monkeypatch: pytest.MonkeyPatch, marked: bool, name: str | None, extra: int
) -> None:
    record = SimpleNamespace(speculative_algorithm=name)
    if marked:
        arguments.mark(record, {})
    spec = SimpleNamespace(speculative_num_draft_tokens=16, speculative_num_steps=4, speculative_eagle_topk=2)
    context: Any = ModuleType("sglang.srt.runtime_context")
    context.get_context = lambda: SimpleNamespace(server_args=record)
    context.get_spec = lambda: spec
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    widths: list[int] = []

    def make(pool: Any, size: int, max_context_len: int) -> None:
        widths.append(max_context_len)

    algorithm._roomier_pool(make, object(), 4, max_context_len=100)
    assert widths == [100 + extra]


@pytest.mark.parametrize("pushes_out", [None, "old"])
def test_what_a_full_queue_drops_is_closed(pushes_out: str | None) -> None:
    closed: list[str] = []
    other, old, new = map(_Request, ("other", "old", "new"))
    suffix = SimpleNamespace(dropped=lambda request: closed.append(request.rid))
    scheduler: Any = SimpleNamespace(
        waiting_queue=[other, old], draft_worker=SimpleNamespace(suffix=suffix), max_queued_requests=2
    )

    def queue_limit(scheduler: Any, request: Any) -> bool:
        scheduler.waiting_queue = [waiting for waiting in scheduler.waiting_queue if waiting.rid != pushes_out]
        return pushes_out is None

    request: Any = new
    assert algorithm._at_full_queue(queue_limit, scheduler, request) is (pushes_out is None)
    assert closed == [pushes_out or "new"]


@pytest.mark.parametrize("flag", ["enable_two_batch_overlap", "enable_forward_pass_metrics"])
def test_the_scheduler_knows_lengths_where_it_reads_them(monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    monkeypatch.setattr(arguments, "has_token_states", lambda config: pytest.fail("it would change SGLang"))
    runner: Any = SimpleNamespace(server_args=SimpleNamespace(**{flag: True}), model_config=None)
    assert not compat.leave_lengths_to_worker(runner)


def test_a_registration_that_failed_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def fail() -> None:
        calls.append("failed")
        raise ImportError("no SGLang")

    monkeypatch.setattr(plugin, "_registered", False)
    monkeypatch.setattr(algorithm, "install", fail)
    for _ in range(2):
        with pytest.raises(ImportError):
            plugin.register()
    monkeypatch.setattr(algorithm, "install", lambda: calls.append("done"))
    plugin.register()
    plugin.register()
    assert calls == ["failed", "failed", "done"]
