"""What the gains depend on: the settings, and a run of one of them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentspec.evals.emulated import sensitivity
from agentspec.evals.emulated.sensitivity import settings
from agentspec.evals.run.cells import Cell


def test_every_head_and_every_part_of_the_step_times_is_varied() -> None:
    found = settings()
    assert found[0].name == "base" and len({one.name for one in found}) == len(found)
    assert {one.head for one in found} == {*sensitivity.HEADS, "published", "recorded"}
    varied = {(part, factor) for one in found for part, factor in one.factors.items()}
    assert varied == {(part, factor) for part in ("memory", "arithmetic", "passes") for factor in (0.5, 2.0)}
    base, slow = found[0].times(), next(one for one in found if one.name == "memory-x2").times()
    assert base.target(1, 1, 1000) < slow.target(1, 1, 1000) < 2.01 * base.target(1, 1, 1000)


def test_plain_decoding_and_suffix_drafts_run_once_for_all_heads_and_the_hybrid_with_the_best_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensitivity, "hollow_model", lambda device: (tmp_path / device, tmp_path))
    monkeypatch.setattr(sensitivity, "_cell", lambda *args, **kwargs: Cell("made up", "warm", 1, 0, (), (), 0))
    speeds = {"eagle3-7": 2.0}
    monkeypatch.setattr(sensitivity, "system_named", lambda name, times, clients: name)
    monkeypatch.setattr(sensitivity, "serve", lambda system, cell, head: {"tokens_per_second": speeds.get(system, 1.0)})
    monkeypatch.setattr(sensitivity, "ProcessPoolExecutor", ThreadPoolExecutor)
    out = tmp_path / "out.json"
    words = ["--data", str(tmp_path), "--tasks", "sql_rsl_bird", "--json", str(out), "--settings"]
    assert sensitivity.main([*words, "base,head-1.5,head-recorded"]) == 0
    content = json.loads(out.read_text(encoding="utf-8"))
    assert content["base"] == {"emulated": "h200-8b", "head": "2.8"} and content["records"][0]["commit"]
    cells: dict[str, set[int]] = {}
    systems: dict[str, set[str]] = {}
    for record in content["records"]:
        cells.setdefault(record["setting"], set()).add(record["clients"])
        systems.setdefault(record["setting"], set()).add(record["system"])
    with_head = {"eagle3-3", "eagle3-5", "eagle3-7", "hybrid-7"}
    ngram = {f"ngram-{width}" for width in (4, 12, 32, 64)}
    assert cells == {"base": {1, 4, 16, 64}, "head-1.5": {1, 16, 64}, "head-recorded": {1}}
    # A recorded head has fewer sessions, so other cells.
    assert systems == {
        "base": with_head | ngram | {"none", "suffix"},
        "head-1.5": with_head,
        "head-recorded": with_head | {"none", "suffix"},
    }
