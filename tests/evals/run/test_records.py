"""Figures of cells, comparisons, interrupted runs that are resumed, and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.evals.clients.client import Reply
from agentspec.evals.run.calls import CellResult, Counts
from agentspec.evals.run.cells import Cell
from agentspec.evals.run.file import missing, read_records, write_records
from agentspec.evals.run.records import compared, failed_record, record_of
from agentspec.evals.run.runner import EVALUATED


def cell(pass_name: str = "cold", concurrency: int = 2, repeat: int = 0) -> Cell:
    return Cell("task", pass_name, concurrency, repeat, (), (), 0)


def result(
    of: Cell, *, seconds: float = 2.0, outputs: str | None = "a", task_seconds: tuple[float, ...] = (), **counts: Any
) -> CellResult:
    """Two concurrent answers of 11 tokens, whose first tokens come after half a second, and one failed call."""
    good = Reply(began=1.0, first=1.5, ended=1.0 + seconds, tokens=11, steps=5, drafted=40, accepted=10)
    return CellResult(
        cell=of,
        replies=(good, good, Reply(began=1.0, ended=1.1, error="refused")),
        outputs=outputs,
        counts=Counts(**counts),
        seconds=seconds,
        cpu_seconds=4.0,
        prompt_tokens_cut=3,
        accuracy=None,
        exact_answers=None,
        task_seconds=task_seconds,
    )


def record(system: str, of: Cell, **rest: Any) -> dict[str, Any]:
    return record_of(system, EVALUATED[system], result(of, **rest), {"seed": 0})


def test_figures_of_a_cell() -> None:
    found = record("ngram", cell())
    assert (found["requests"], found["completed"], found["failed"]) == (3, 2, 1)
    assert found["tokens_per_second"] == 11.0 and found["tokens_per_cpu_second"] == 5.5
    # The first token of each request comes from its prefill.
    assert found["goodput"] == 10.0 and found["accept_length"] == 2.0
    assert found["acceptance_rate"] == 0.25
    assert found["ttft_ms_p50"] == 500.0 and found["tpot_ms_p99"] == 150.0
    assert found["latency_p50_s"] == 2.0 and found["prompt_tokens_cut"] == 3 and found["errors"] == ["refused"]
    assert found["draft_share"] is None and found["drafter_step_share"] == 0.0
    assert record("eagle3", cell())["drafter_step_share"] == 1.0
    # A plain decode step is a step of width one.
    assert record("none", cell())["accept_length"] == 1.0


def test_records_are_compared_within_their_cell() -> None:
    records = [
        record("none", cell(), seconds=4.0),
        record("ngram", cell(), seconds=2.0, outputs="b"),
        record("suffix", cell(), seconds=1.0),
        record("suffix", cell(repeat=1), seconds=1.0),
        failed_record("hybrid", cell(), "it fell over", {"seed": 0}),
        record("none", cell("warm"), seconds=8.0, outputs=None),
    ]
    none, ngram, suffix, alone, failed, warm = compared(records)
    assert (none["identical"], ngram["identical"], suffix["identical"]) == (True, False, True)
    assert suffix["speedup_over_none"] == 4.0 and suffix["speedup_over_ngram"] == 2.0
    assert suffix["baseline"] == {"none": 5.5, "ngram": 11.0}
    assert alone["baseline"] == {} and alone["speedup_over_none"] is None and alone["compared_with"] == "suffix"
    assert failed["identical"] is None and failed["speedup_over_none"] is None
    assert warm["identical"] is None


def test_an_interrupted_run_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    path, settings = tmp_path / "out.json", {"seed": 0, "concurrency": (1, 2)}
    cells = [cell(repeat=repeat) for repeat in range(3)]
    records = [record(name, cells[0]) for name in ("none", "suffix")]
    records += [record("none", cells[1]), failed_record("suffix", cells[1], "gone", {})]
    write_records(path, records, settings)
    found = read_records(path, settings)
    assert [one["system"] for one in found] == ["none", "suffix", "none", "suffix"]
    systems = ["none", "suffix"]
    # Servers that are asked in turns measure a cell together. Other servers measure only the cells that they lack.
    together = missing(cells, systems, found, together=True)
    assert {name: [one.repeat for one in some] for name, some in together.items()} == {"none": [1, 2], "suffix": [1, 2]}
    apart = missing(cells, systems, found, together=False)
    assert {name: [one.repeat for one in some] for name, some in apart.items()} == {"none": [2], "suffix": [1, 2]}
    assert read_records(tmp_path / "none.json", settings) == []
    with pytest.raises(ConfigError, match="seed 0 instead of 1"):
        read_records(path, {**settings, "seed": 1})
    path.write_text("{}")
    with pytest.raises(ConfigError, match="agentspec eval wrote"):
        read_records(path, settings)
