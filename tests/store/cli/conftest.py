"""The command `agentspec store` on a store of each kind."""

from __future__ import annotations

import pytest
from store_case import StoreCase
from store_command import StoreCommand


@pytest.fixture
def command(case: StoreCase, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> StoreCommand:
    for name in ("STORE", "STORE_KEY", "NAMESPACE_KEY", "STORE_PASSWORD"):
        monkeypatch.delenv(f"AGENTSPEC_{name}", raising=False)
        monkeypatch.delenv(f"AGENTSPEC_{name}_FILE", raising=False)
    return StoreCommand(case, capsys)
