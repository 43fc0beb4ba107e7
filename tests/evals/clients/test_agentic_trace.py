"""Sessions as a data set of SGLang's own benchmark: SGLang's reader reads it, and its turns lead to the recorded prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agentspec.evals.clients import agentic_trace
from agentspec.evals.clients.replay_requests import recorded_sessions
from agentspec.integrations.sglang_cpu.imports import install

Messages = Sequence[tuple[str, str]]
SESSION = [("system", "S"), ("user", "one"), ("assistant", "A"), ("user", "two"), ("tool", "out"), ("assistant", "B")]


def write(path: Path, *sessions: Messages) -> Path:
    lines = [
        {"session": f"s{n}", "messages": [{"role": role, "content": text} for role, text in messages]}
        for n, messages in enumerate(sessions)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_turns_and_answers_make_the_recorded_prompts(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", SESSION)
    (calls,) = recorded_sessions([log]).values()
    turns = agentic_trace.turns_of(calls)
    assert turns == [
        {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "one"}]},
        {"messages": [{"role": "user", "content": "two"}, {"role": "tool", "content": "out"}]},
    ]
    history: list[tuple[str, str]] = []
    for turn, call in zip(turns, calls, strict=True):
        history += [(message["role"], message["content"]) for message in turn["messages"]]
        assert tuple(history) == call.messages
        history.append(("assistant", call.output))


def test_a_session_ends_where_a_prompt_does_not_go_on(tmp_path: Path) -> None:
    calls = [call for some in recorded_sessions([write(tmp_path / "log.jsonl", SESSION)]).values() for call in some]
    other = [call for some in recorded_sessions([write(tmp_path / "b.jsonl", SESSION[1:])]).values() for call in some]
    assert len(agentic_trace.turns_of([*calls, calls[0]])) == 2
    assert len(agentic_trace.turns_of([calls[0], other[1]])) == 1
    assert len(agentic_trace.turns_of([calls[0], calls[0]])) == 1


def test_a_log_without_prompts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write(tmp_path / "log.jsonl", [("assistant", "A")])
    assert agentic_trace.main([str(log), "--out", str(tmp_path / "out.json")]) == 2
    assert "no session with prompts" in capsys.readouterr().err and not (tmp_path / "out.json").exists()


@pytest.mark.sglang
def test_sglang_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install()
    # Another reader of the same package imports it, and this one needs nothing of it.
    datasets: Any = ModuleType("datasets")
    datasets.load_dataset = None
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    from sglang.benchmark.datasets.agentic_trace import AgenticTraceDataset

    out = tmp_path / "out.json"
    assert agentic_trace.main([str(write(tmp_path / "log.jsonl", SESSION, SESSION)), "--out", str(out)]) == 0
    options = {"dataset_path": str(out), "num_prompts": 0, "sharegpt_output_len": 9, "dataset_offset": 0}
    rows = AgenticTraceDataset.from_args(SimpleNamespace(**options, agentic_max_turns=None)).load(None)  # type: ignore[arg-type]
    assert [len(row.prompt) for row in rows] == [2, 2] and rows[0].output_len == 9
