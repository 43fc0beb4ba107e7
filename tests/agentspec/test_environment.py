from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

import pytest

from agentspec.environment import describe


@pytest.mark.parametrize(
    ("started", "recorded"),
    [
        ("agentspec.evals.run.coding_agents", "python -m agentspec.evals.run.coding_agents"),
        ("agentspec.workflows.swe.__main__", "python -m agentspec.workflows.swe"),
        ("agentspec.__main__", "agentspec"),
        (None, "agentspec"),
    ],
)
def test_a_recorded_command_can_be_run_again(
    started: str | None, recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModuleSpec(started, None) if started else None
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    monkeypatch.setattr(sys, "argv", ["program", "--out", "/somewhere/out.json"])
    assert " ".join(describe(())["command"]) == f"{recorded} --out out.json"
