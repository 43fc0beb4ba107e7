"""Recorded sessions as conversations with forced answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentspec.errors import ConfigError
from agentspec.evals.clients.replay_requests import ReplayRequest
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads import TASKS
from agentspec.evals.workloads.replayed import conversations, log_task, replay_task
from agentspec.evals.workloads.task import Conversation, TaskInputs


def request(session: str, index: int, prompt: list[int], answer: list[int], cut: int = 0) -> ReplayRequest:
    ids = np.array(prompt, np.int32), np.array(answer, np.int32)
    return ReplayRequest(*ids, session, index, session[0], True, cut)


def test_conversations_are_sessions_from_their_first_call_and_carry_answers() -> None:
    requests = [request("a1", i, [i], [7, 8, i]) for i in range(5)]
    requests += [request("a2", 0, [50], [9]), request("b1", 0, [60], [9, 9])]
    found = conversations(requests, 3)
    assert [[one.session for one in some] for some in found.values()] == [["a1"], ["b1"]]
    (first,) = found["a"]
    assert [call.body["input_ids"] for call in first.calls] == [[0], [1], [2]]
    assert [call.answer for call in first.calls] == [(7, 8, i) for i in range(3)]
    params = first.calls[0].body["sampling_params"]
    assert params["custom_params"] == {"agentspec": {"replay": {"ids": [7, 8, 0]}}}


def test_a_replay_task_reads_its_trace(tmp_path: Path) -> None:
    lines = [
        {
            "session": f"s{i}", "task": f"t{i}", "run": "",
            "messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": f"{i} it is"}],
        }
        for i in range(5)
    ]  # fmt: skip
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = replay_task("trace", data="", source="", trace="trace.jsonl")
    assert task.is_replay and not task.answered_freely().is_replay
    inputs = TaskInputs(model=MODEL_FOLDER, data=tmp_path, learnt_calls=4, max_prompt_tokens=6)
    free = task.pool(replace(inputs, own_answers=True, max_answer_tokens=9)).learnt[0]
    assert isinstance(free, Conversation) and free.calls[0].answer == ()
    assert free.calls[0].body["sampling_params"] == {"temperature": 0.0, "max_new_tokens": 9}
    pool = task.pool(inputs)
    units = pool.draw(2, 2)
    assert len(units) == 2 and len(pool.learnt) == 1
    for unit in units:
        assert isinstance(unit, Conversation)
        assert len(unit.calls[0].body["input_ids"]) == 6 and unit.calls[0].prompt_tokens_cut > 0
        # A server crashes at a token id outside the vocabulary of its model.
        assert max(unit.calls[0].body["input_ids"]) < 1536


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    task = TASKS["swe_mini_agent"]
    for data, named in ((None, "--data"), (tmp_path, task.trace)):
        with pytest.raises(ConfigError, match=named):
            task.pool(TaskInputs(model=MODEL_FOLDER, data=data))


def test_a_log_of_the_user_is_a_task(tmp_path: Path) -> None:
    log = tmp_path / "mine.2026.jsonl"
    turns = [{"messages": [{"role": "user", "content": f"say {i}"}], "output": f"{i} it is"} for i in range(9)]
    log.write_text("".join(json.dumps({"session": f"s{i}"} | turn) + "\n" for i, turn in enumerate(turns)))
    task = log_task(log)
    assert task.name == "mine" and task.is_replay
    assert len(task.pool(TaskInputs(model=MODEL_FOLDER, learnt_calls=1)).draw(4, 4)) == 4
    with pytest.raises(ConfigError, match="--log"):
        log_task(tmp_path / "nothing.jsonl")
