from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from agentspec.analysis.replay.tokenizer import load_tokenizer
from agentspec.errors import ConfigError
from agentspec.evals.gpu.work import RecordedCall, Work, load_work, make_work, num_calls, save_work
from agentspec.evals.text_to_sql import MODEL_FOLDER


def drawn_work(rng: random.Random, trace: str) -> Work:
    def calls(number: int) -> tuple[RecordedCall, ...]:
        return tuple(
            RecordedCall(*(np.array([rng.randrange(9) for _ in range(rng.randint(1, 6))], np.int32) for _ in range(2)),
                         bool(rng.getrandbits(1)))
            for _ in range(number)
        )  # fmt: skip

    return Work(trace, calls(rng.randint(0, 3)), {clients: calls(rng.randint(1, 4)) for clients in (1, 4)})


def told(work: Work) -> object:
    groups = {0: work.warm, **work.measured}
    return work.trace, {n: [(c.prompt.tolist(), c.answer.tolist(), c.is_whole) for c in groups[n]] for n in groups}


def test_work_is_read_as_it_was_written(tmp_path: Path) -> None:
    rng = random.Random(0)
    for i in range(10):
        works = [drawn_work(rng, trace) for trace in ("sql", "chat")]
        save_work(tmp_path / f"{i}.npz", works)
        assert [told(work) for work in load_work(tmp_path / f"{i}.npz").values()] == [told(work) for work in works]


def test_what_is_no_work_is_refused(tmp_path: Path) -> None:
    for content in (None, b"no archive"):
        path = tmp_path / "work.npz"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match="prepare"):
            load_work(path)


def trace_file(path: Path, sessions: int) -> Path:
    lines = []
    for s in range(sessions):
        messages = []
        for turn in range(3):
            messages.append({"role": "user", "content": f"question {s} {turn} of the tables"})
            messages.append({"role": "assistant", "content": f"SELECT column_{s % 3} FROM table_{turn}"})
        lines.append(json.dumps({"session": f"s{s}", "task": "t", "run": "r", "model": "m", "messages": messages}))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_nothing_is_asked_twice_and_nothing_measured_is_of_a_warm_session(tmp_path: Path) -> None:
    path = trace_file(tmp_path / "calls.jsonl", 30)
    tokenizer = load_tokenizer(MODEL_FOLDER / "tokenizer.json")
    rules = {"scale": 0.5, "max_prompt_tokens": 40, "max_answer_tokens": 8, "seed": 3, "vocab_size": 1536, "end": 2}
    work = make_work("sql", [path], tokenizer, concurrencies=(1, 4), warm_calls=7, **rules)  # type: ignore[arg-type]
    assert len(work.warm) == 7
    assert {n: len(calls) for n, calls in work.measured.items()} == {n: num_calls(n, 0.5) for n in (1, 4)}
    calls = [*work.warm, *(call for some in work.measured.values() for call in some)]
    prompts = [call.prompt.tobytes() for call in calls]
    assert len(set(prompts)) == len(prompts)
    assert max(len(call.prompt) for call in calls) <= 40 and max(len(call.answer) for call in calls) <= 8
    # The small model's tokenizer has no end of turn. Its loader adds one, which is beyond the model's vocabulary.
    assert max(int(call.prompt.max()) for call in calls) < 1536
    for call in calls:
        body = call.body()
        assert body["sampling_params"]["custom_params"]["agentspec"]["replay"]["ids"] == call.answer.tolist()
        assert body["sampling_params"]["max_new_tokens"] == len(call.answer) + call.is_whole
    with pytest.raises(ConfigError, match="ask for fewer"):
        make_work("sql", [path], tokenizer, concurrencies=(64, 128), warm_calls=7, **rules)  # type: ignore[arg-type]
