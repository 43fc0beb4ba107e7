"""Registration: what the plugin changes in a process, and when it counts as registered."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agentspec.integrations.sglang import arguments, plugin
from agentspec.integrations.sglang import registration as algorithm


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
