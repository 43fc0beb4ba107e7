from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer

from agentspec.cli import main
from agentspec.evals.micro.store import bench as bench_store
from agentspec.evals.micro.store.bench import Bench
from agentspec.evals.micro.store.cpu import CPU_ROWS, cpu_rows
from agentspec.evals.micro.store.load import LOAD_ROWS, OUTPUTS_PER_SECOND, load_rows
from agentspec.evals.micro.store.ready import ready_rows
from agentspec.evals.micro.store.redis_server import redis_version

KINDS = ["sqlite", pytest.param("redis", marks=pytest.mark.redis)]


def text(num_tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.random.default_rng(0).integers(0, 200, size=num_tokens).astype(np.int32)


@pytest.mark.parametrize("kind", KINDS)
def test_a_starting_server_is_ready_with_everything(kind: str, tmp_path: Path) -> None:
    outputs = np.split(text(20_000), 40)
    from_snapshot, from_log = ready_rows(kind, "20k", outputs, tmp_path)
    assert (from_snapshot.case, from_log.case) == (f"ready_20k_{kind}_s", f"ready_20k_{kind}_log_s")
    assert from_snapshot.more["snapshot_bytes"] > 1000 > from_log.more["snapshot_bytes"]
    for row in (from_snapshot, from_log):
        assert row.value > 0
        assert row.more["probes_right"] == "40 of 40"


@pytest.mark.parametrize("kind", KINDS)
def test_a_follower_receives_what_two_writers_finish(kind: str, tmp_path: Path) -> None:
    rows = {row.case: row for row in load_rows(kind, text(20_000), 0.5, tmp_path)}
    suffix = "" if kind == "redis" else "_sqlite"
    assert list(rows) == [name + suffix for name in LOAD_ROWS]
    losses = rows[f"lost_outputs{suffix}"]
    assert losses.value == 0
    assert losses.more["received"] == losses.more["outputs"] == OUTPUTS_PER_SECOND // 2
    lags = [rows[f"follower_lag_{quantile}_s{suffix}"].value for quantile in ("p50", "p99")]
    assert 0 < lags[0] <= lags[1]
    assert rows[f"follower_lag_p99_s{suffix}"].more["arrival_p99_s"] <= lags[1]


@pytest.mark.parametrize("kind", KINDS)
def test_threads_are_counted_that_share_outputs(kind: str, tmp_path: Path) -> None:
    one, two = cpu_rows(kind, text(20_000), 1.0, tmp_path)
    suffix = "" if kind == "redis" else "_sqlite"
    assert (one.case, two.case) == tuple(name + suffix for name in CPU_ROWS)
    assert (one.more["outputs"], one.more["received_outputs"]) == (25, 0)
    assert (two.more["outputs"], two.more["received_outputs"]) == (50, 50)
    # With Redis no thread of the scheduler's process encodes, decodes or talks to the store.
    here = {"engine", "outbox"} if kind == "redis" else {"writer", "follower", "keeper"}
    for row in (one, two):
        used = row.more["us_by_thread"]
        assert set(used) == {*(f"agentspec-store-{name}" for name in here), "publish", "store's process"}
        assert row.value == pytest.approx(sum(used.values()) - used["store's process"], abs=1.0)
        assert (used["store's process"] > 0) == (kind == "redis")


@pytest.mark.redis
def test_figures_are_written_with_what_they_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Bench, "tokenizer", byte_tokenizer())
    monkeypatch.setattr(bench_store, "_LOAD_TEXT_TOKENS", 20_000)
    file = tmp_path / "bench.json"
    arguments = ["--case", "lost_outputs_sqlite", "--seconds", "0.1", "--json", str(file)]
    assert main(["bench", "store", *arguments, "--logs", str(tmp_path / "logs")]) in (0, 1)
    written = json.loads(file.read_text())
    assert [row["case"] for row in written["rows"]] == [f"{name}_sqlite" for name in LOAD_ROWS]
    assert {"case", "value", "unit"} <= set(written["rows"][0])
    assert written["head"]["redis_server"] == redis_version()
    assert {"command", "versions", "hardware", "tokenizer", "texts"} <= set(written["head"])
    assert "lost_outputs_sqlite" in capsys.readouterr().out
