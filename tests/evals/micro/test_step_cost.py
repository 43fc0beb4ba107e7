from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.cli import main
from agentspec.errors import ServerError
from agentspec.evals.emulated import servers as emulation
from agentspec.evals.micro import step_cost as bench_step_cost
from agentspec.evals.micro.step_cost import of_steps, table

FIGURES = {"host_reads", "eager_ops", "h2d_copies", "python_ms", "native_ms", "idle_share"}
SUMS = {
    "steps": 10.0,
    "host_reads": 20.0,
    "eager_ops": 300.0,
    "h2d_copies": 40.0,
    "blocking_h2d_copies": 0.0,
    "python_seconds": 0.005,
    "native_seconds": 0.002,
    "launch_seconds": 0.003,
    "wait_seconds": 0.03,
    "busy_seconds": 0.04,
    "idle_seconds": 0.01,
    "seconds": 0.05,
    "tokens": 160.0,
}


def test_figures_are_means_over_the_steps_in_between() -> None:
    row = of_steps({name: 3 * value for name, value in SUMS.items()}, SUMS)
    assert row["steps"] == 20
    assert (row["host_reads"], row["eager_ops"], row["h2d_copies"]) == (2.0, 30.0, 4.0)
    assert (row["python_ms"], row["native_ms"]) == (pytest.approx(0.5), pytest.approx(0.2))
    assert row["idle_share"] == pytest.approx(0.2)
    assert row["verified_tokens"] == pytest.approx(16.0)
    assert len(table([{"system": "suffix", "rows": 16, **row}])) == 2
    with pytest.raises(ServerError, match="only 0 steps"):
        of_steps({}, {})


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
