"""Recorded calls as requests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer, text_of

from agentspec.errors import ConfigError
from agentspec.evals.clients.replay_requests import ReplayRequest, replay_requests


def _write(folder: Path, sessions: int, turns: int) -> Path:
    path = folder / "trace.jsonl"
    lines = []
    for session in range(sessions):
        messages = [{"role": "system", "content": "Be short."}]
        for turn in range(turns):
            messages.append({"role": "user", "content": f"question {session}.{turn}"})
            messages.append({"role": "assistant", "content": f"answer {session}.{turn}"})
        lines.append({"session": f"s{session}", "task": f"t{session % 2}", "run": "r", "messages": messages})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _read(path: Path, *, prompt: int = 1000, answer: int = 1000, limit: int | None = None) -> list[ReplayRequest]:
    return replay_requests(
        [path], byte_tokenizer(), max_prompt_tokens=prompt, max_answer_tokens=answer, limit=limit, seed=3
    )


def test_all_calls_in_their_order(tmp_path: Path) -> None:
    requests = _read(_write(tmp_path, 3, 2))
    assert [text_of(r.answer_ids.tolist()) for r in requests] == [f"answer {s}.{t}" for s in range(3) for t in range(2)]
    assert [(r.index, r.task) for r in requests] == [(t, f"t{s % 2}") for s in range(3) for t in range(2)]
    assert len({r.session for r in requests}) == 3
    assert text_of(requests[1].input_ids.tolist()) == (
        "<|system|>\nBe short.$<|user|>\nquestion 0.0$<|assistant|>\nanswer 0.0$<|user|>\nquestion 0.1$<|assistant|>\n"
    )


def test_long_prompts_lose_their_beginning_and_long_answers_their_end(tmp_path: Path) -> None:
    path = _write(tmp_path, 1, 2)
    whole, cut = _read(path), _read(path, prompt=30, answer=6)
    for before, after in zip(whole, cut, strict=True):
        assert np.array_equal(after.input_ids, before.input_ids[-30:])
        assert np.array_equal(after.answer_ids, before.answer_ids[:6])
    assert [r.is_whole for r in whole] == [True, True]
    assert [r.max_new_tokens for r in cut] == [6, 6]
    body = cut[0].body()
    assert body["input_ids"] == cut[0].input_ids.tolist()
    assert body["sampling_params"]["custom_params"] == {"agentspec": {"replay": {"ids": list(b"answer")}}}
    assert whole[0].body()["sampling_params"]["max_new_tokens"] == len("answer 0.0") + 1


@pytest.mark.parametrize("wrong", [{"prompt": 0}, {"answer": 0}, {"limit": 0}])
def test_limits_below_one_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=">= 1"):
        _read(_write(tmp_path, 1, 1), **wrong)
