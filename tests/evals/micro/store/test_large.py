"""A server starts from a store of many namespaces within its budget, and drafts from what it loaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agentspec.evals.micro.store import large


def test_figures_of_a_small_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.json"
    words = ["--tokens", "100k", "--namespaces", "8", "--budget-mb", "1", "64", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["large", *words])
    large.main()
    small, ample = json.loads(path.read_text())["rows"]
    assert small["stored_outputs"] == ample["loaded_outputs"] == 200
    assert 0 < small["loaded_outputs"] < 200
    assert small["index_bytes"] <= small["budget_bytes"] == 1 << 20
    assert ample["loaded_namespaces"] == 8
    assert ample["drafts_right"] == "256 of 256"
