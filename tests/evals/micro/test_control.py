"""The bench of the controllers: its drafts are trees, best nodes first, and every case has its row."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agentspec import build_tree_arrays
from agentspec.cli import main
from agentspec.evals.micro.control import NODES, draw_batch, measure


@pytest.mark.parametrize("full", [True, False])
def test_drawn_drafts_are_trees_in_best_first_order(full: bool) -> None:
    drafts = draw_batch(np.random.default_rng(0), 16, full=full)
    sizes = build_tree_arrays(drafts, NODES).num_nodes
    assert (sizes == NODES).all() == full
    for i in range(16):
        row = drafts.row(i)
        assert row.estimates[0] == 1.0 and (np.diff(row.estimates) <= 0).all()
        assert row.score == pytest.approx(row.estimates[1:].sum(), rel=1e-4)


def test_every_controller_and_batch_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = measure(3, batches=(1, 4))
    assert len(rows) == len({row["case"] for row in rows}) == 2 * 2 * 7
    assert all(0 < row["value"] <= row["p99"] for row in rows)
    assert {"controller_ms_batch1", "controller_ms_batch4", "controller_ms_batch4_smartspec-tree_ragged"} <= {
        row["case"] for row in rows
    }
    assert main(["bench", "control", "--steps", "1", "--json", str(tmp_path / "bench.json")]) == 0
    written = json.loads((tmp_path / "bench.json").read_text())
    assert "controller_ms_batch256" in {row["case"] for row in written["rows"]}
    assert "controller_ms_batch256 " in capsys.readouterr().out
    assert main(["bench", "control", "--steps", "0"]) == 2
