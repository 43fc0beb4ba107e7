from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.cli import main
from agentspec.evals.emulated import servers as emulation
from agentspec.evals.micro import step_cost as bench_step_cost

FIGURES = {"host_reads", "eager_ops", "h2d_copies", "python_ms", "native_ms", "idle_share"}


@pytest.mark.sglang
@pytest.mark.server
@pytest.mark.xdist_group("emulated device")
def test_suffix_drafts_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Path(__file__).resolve().parents[3] / "evals" / "models"
    monkeypatch.setattr(
        emulation, "hollow_model", lambda name, tokenizer: (models / "tiny-sql", models / "tiny-sql-eagle3")
    )
    monkeypatch.setattr(bench_step_cost, "_LAST_TOKEN", 1500)
    path = tmp_path / "bench.json"
    assert main(["bench", "step-cost", "--system", "suffix", "--rows", "2", "--json", str(path)]) == 0
    [row] = json.loads(path.read_text())["rows"]
    assert (row["system"], row["rows"]) == ("suffix", 2)
    assert row.keys() >= FIGURES
    assert row["host_reads"] <= 1
    assert 0 < row["python_ms"] < 100
    assert 0 <= row["idle_share"] < 1
