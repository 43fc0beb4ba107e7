"""Shortens the waits between retries, so that tests recover from faults sooner."""

from __future__ import annotations

import pytest

from agentspec.store.redis import reader as redis_reader
from agentspec.store.replication import backoff as retry
from agentspec.store.replication import writer


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_LONGEST_WAIT", 0.3)
    for module in (redis_reader, writer):
        monkeypatch.setattr(module, "BROKEN_SECONDS", 0.2)
