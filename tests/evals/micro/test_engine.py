from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from byte_tokenizer import byte_tokenizer
from programs import output_of

from agentspec.analysis.replay import Call
from agentspec.cli import main
from agentspec.evals.emulated import servers as emulation
from agentspec.evals.micro import engine as bench_engine
from agentspec.evals.micro import engine_cases as bench_cases
from agentspec.evals.micro import step_cost as bench_step_cost
from agentspec.evals.micro.engine import measure
from agentspec.evals.micro.engine_cases import ACCEPTED, BATCHES, STEPS
from agentspec.evals.micro.engine_sides import Ours, engine
from agentspec.evals.micro.texts import Texts, gather_texts


def gather(recorded: list[Call], output_tokens: int) -> Texts:
    return gather_texts(
        recorded,
        byte_tokenizer(),
        output_tokens=output_tokens,
        num_requests=max(BATCHES),
        request_tokens=1 + STEPS * ACCEPTED,
    )


def test_our_engine_beside_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # Emptying the caches takes most of the time and is not what is tested.
    monkeypatch.setattr(bench_cases, "_TOUCHED_BYTES", 1024)
    monkeypatch.setitem(bench_engine.PEERS, "itself", {"itself": lambda limit: Ours(engine(limit))})
    rows = list(measure(gather([], 8_000), {"2k": 2000, "8k": 8000}, ["itself"]))
    drafts = {
        f"{quantity}_bs{batch}_{caches}"
        for quantity in ("draft", "extend")
        for batch in BATCHES
        for caches in ("hot", "touched")
    }
    assert {row.case for row in rows} == drafts | {"insert", "insert_all_threads", "memory"}
    for case in {"insert", "insert_all_threads", "memory"} | drafts:
        assert [row.size for row in rows if row.case == case] == ["2k", "8k"]
    for row in rows:
        assert row.peer == "itself"
        assert row.ours > 0
        # The heap size of so small an index is lost among what the rest of this process allocates and frees.
        assert row.theirs > 0 or row.case == "memory"
        assert row.record().items() >= {"case": row.case, "size": row.size, "unit": row.unit}.items()
        more = row.more or {}
        if "ours_drafted" in more:
            assert more["ours_drafted"] == more["theirs_drafted"] > 0


_MEASURE_MEMORY = """
import numpy as np
from agentspec.evals.micro.engine_sides import engine


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


rng = np.random.default_rng(0)
grown = engine(16)
outputs = [rng.integers(0, 1000, size=2000).astype(np.int32) for _ in range(500)]
before = resident_bytes()
for output in outputs:
    grown.open("a", output[:1])
    grown.extend("a", output)
    grown.close("a")
    # One by one: a burst waits in memory that the allocator keeps afterwards.
    grown.flush()
print(grown.stats().global_bytes, resident_bytes() - before)
"""


def test_memory_by_the_engines_account_and_the_kernels() -> None:
    # This runs in a separate process, because memory that other tests have not freed yet would count.
    account, resident = map(int, output_of(sys.executable, "-c", _MEASURE_MEMORY).split())
    assert account == pytest.approx(17 * 1_000_000, rel=0.1)
    # Besides the index, resident memory includes the heap that building it left behind.
    assert 0.8 * account < resident < 2 * account


@pytest.mark.arctic
def test_all_cases_beside_arctic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_cases, "_TOUCHED_BYTES", 1024)
    rows = list(measure(gather([], 4_000), {"4k": 4000}, ["arctic"]))
    cases = Counter(row.case for row in rows)
    for case in ("insert", "memory", "draft_bs64_hot", "extend_bs1_touched"):
        assert cases[case] == 2
    # Deeper trees of the same texts take more memory.
    deep, shallow = (row.theirs for row in rows if row.case == "memory")
    assert deep > shallow


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
