from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from every import every

from agentspec import ConfigError
from agentspec.analysis.replay import Call
from agentspec.evals.micro import engine as bench_engine
from agentspec.evals.micro import engine_cases as bench_cases
from agentspec.evals.micro.engine import measure, parse_sizes
from agentspec.evals.micro.engine_cases import ACCEPTED, BATCHES, STEPS
from agentspec.evals.micro.engine_sides import Ours, engine
from agentspec.evals.micro.texts import Texts, gather_texts


def calls(sessions: int, number: int) -> list[Call]:
    """Sessions of `number` calls each. Every prompt contains the previous one."""
    rng = np.random.default_rng(0)
    made = []
    for session in range(sessions):
        parts: tuple[np.ndarray[tuple[int], np.dtype[np.int32]], ...] = ()
        for _ in range(number):
            parts = (*parts, rng.integers(0, 200, size=1500).astype(np.int32))
            output = rng.integers(0, 200, size=60).astype(np.int32)
            made.append(Call(str(session), "", "", parts, output))
            parts = (*parts, output)
    return made


def gather(recorded: list[Call], output_tokens: int) -> Texts:
    return gather_texts(
        recorded,
        byte_tokenizer(),
        output_tokens=output_tokens,
        num_requests=max(BATCHES),
        request_tokens=1 + STEPS * ACCEPTED,
        prompt_tokens=64_000,
    )


def test_requests_and_outputs_share_no_call() -> None:
    recorded = calls(sessions=20, number=4)
    texts = gather(recorded, 20_000)
    assert len(texts.requests) == 64
    assert all(len(request.prompt) == 2500 for request in texts.requests)
    assert all(len(request.output) > STEPS * ACCEPTED for request in texts.requests)
    mine = [request for request in texts.requests if any(request.output is call.output for call in recorded)]
    assert len(mine) == 32
    # Every session gives its latest call before any session gives a second one.
    sessions = Counter(call.session for call in recorded for request in mine if request.output is call.output)
    assert sorted(sessions.values()) == [1] * 8 + [2] * 12
    assert not any(output is request.output for output in texts.outputs for request in mine)
    # The remaining recorded outputs are there, mixed with pieces of source code.
    assert sum(any(output is call.output for call in recorded) for output in texts.outputs) == 80 - 32
    assert texts.output_tokens() >= 20_000
    assert {kind: len(prompt) for kind, prompt in texts.prompts.items()} == {"code": 64_000, "agent": 64_000}


@every("text", ["", "1k,1k", "2k,1k", "10", "1g", "k", "1k,", "-1k"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="--sizes must be ascending"):
        parse_sizes(text)


def test_heap_counts_what_is_allocated() -> None:
    # This runs in a separate process, because objects of other tests may be freed in this one at any time.
    program = """
from agentspec.evals.micro.engine_sides import heap_bytes
before = heap_bytes()
blocks = [bytearray(100_000) for _ in range(100)]
held = heap_bytes()
del blocks
print(held - before, heap_bytes() - before)
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    held, left = map(int, done.stdout.split())
    assert held == pytest.approx(10_000_000, rel=0.02)
    assert left < 1_000_000


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
    assert {row.case for row in rows} == drafts | {"insert", "insert_all_threads", "memory", "growth"}
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
    done = subprocess.run([sys.executable, "-c", _MEASURE_MEMORY], check=True, capture_output=True, text=True)
    account, resident = map(int, done.stdout.split())
    assert account == pytest.approx(17 * 1_000_000, rel=0.1)
    # Besides the index, resident memory includes the heap that building it left behind.
    assert 0.8 * account < resident < 2 * account


@pytest.mark.arctic
def test_all_cases_beside_arctic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_cases, "_TOUCHED_BYTES", 1024)
    rows = list(measure(gather([], 4_000), {"4k": 4000}, ["arctic"]))
    cases = Counter(row.case for row in rows)
    for case in ("prompt_open_code", "prompt_build_code", "prompt_close_code", "prompt_memory_code"):
        assert cases[case] == 2 * 3
    for case in ("insert", "memory", "draft_bs64_hot", "extend_bs1_touched"):
        assert cases[case] == 2
    # Deeper trees of the same texts take more memory.
    deep, shallow = (row.theirs for row in rows if row.case == "memory")
    assert deep > shallow
