from __future__ import annotations

import json
import random
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from agentspec.errors import ConfigError
from agentspec.evals.gpu.work import Cell, Trace, load_cells, make_cells, save_cells
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads.prompts import served_tokenizer
from agentspec.evals.workloads.task import Conversation, FixedCall


def drawn_cell(rng: random.Random) -> Cell:
    def call() -> FixedCall:
        prompt, answer = ([rng.randrange(9) for _ in range(rng.randint(1, 6))] for _ in range(2))
        return FixedCall({"input_ids": prompt, "sampling_params": {"max_new_tokens": 3}}, answer=tuple(answer))

    sessions = tuple(
        Conversation(str(i), tuple(call() for _ in range(rng.randint(1, 4)))) for i in range(rng.randint(0, 3))
    )
    return Cell(rng.choice(["sql", "swe"]), rng.choice([0, 1, 16]), rng.randrange(2), sessions)


def test_cells_are_read_as_they_were_written(tmp_path: Path) -> None:
    rng = random.Random(0)
    for i in range(20):
        cells = [drawn_cell(rng) for _ in range(4)]
        save_cells(tmp_path / f"{i}.json", cells)
        assert list(map(asdict, load_cells(tmp_path / f"{i}.json"))) == list(map(asdict, cells))


def test_what_is_no_work_is_refused(tmp_path: Path) -> None:
    for content in (None, b"no archive"):
        path = tmp_path / "work.json"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match="prepare"):
            load_cells(path)


def trace_file(path: Path, tasks: int) -> None:
    lines = []
    for s in range(2 * tasks):
        messages = []
        for turn in range(4):
            messages.append({"role": "user", "content": f"question {s} {turn} of the tables of task {s % tasks}"})
            messages.append({"role": "assistant", "content": f"SELECT column_{s % 3} FROM table_{turn}"})
        line = {"session": f"s{s}", "task": f"t{s % tasks}", "run": "r", "model": "m", "messages": messages}
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n")


def test_sessions_begin_with_their_first_call_and_warm_ones_are_of_other_tasks(tmp_path: Path) -> None:
    trace_file(tmp_path / "calls.jsonl", 12)
    tokenizer = served_tokenizer(MODEL_FOLDER)
    of = Trace(file="calls.jsonl", calls=3, warm=4, sessions=2, most=5, alone=1)

    def made(repetitions: int) -> list[Cell]:
        return make_cells(
            "sql", of, tmp_path, tokenizer, clients=(1, 4), repetitions=repetitions, max_prompt_tokens=200,
            max_answer_tokens=8, seed=3,
        )  # fmt: skip

    cells = made(2)
    shape = [(cell.clients, cell.repetition, len(cell.sessions)) for cell in cells]
    assert shape == [(0, 0, 4), (1, 0, 1), (4, 0, 5), (1, 1, 1), (4, 1, 5)]

    def prompt(call: FixedCall) -> list[int]:
        return list(call.body["input_ids"])

    def task(session: Conversation) -> str:
        return tokenizer.decode(np.array(prompt(session.calls[0]))).split("of task ")[1].split()[0]

    warm = set(map(task, cells[0].sessions))
    measured = [session for cell in cells[1:] for session in cell.sessions]
    assert warm.isdisjoint(map(task, measured))
    prompts = [tuple(prompt(call)) for session in measured for call in session.calls]
    assert len(set(prompts)) == len(prompts)
    for session in measured:
        assert len(session.calls) <= 3
        for one, following in pairwise(session.calls):
            assert prompt(following)[: len(prompt(one))] == prompt(one)
        for call in session.calls:
            # The small model's tokenizer has no end of turn. Its loader adds one, which is beyond the model's vocabulary.
            assert max(prompt(call)) < 1536 and len(prompt(call)) <= 200 and len(call.answer) <= 8
            sampling = call.body["sampling_params"]
            assert tuple(sampling["custom_params"]["agentspec"]["replay"]["ids"]) == call.answer
            is_whole = tokenizer.decode(np.array(call.answer)).endswith(("table_0", "table_1", "table_2", "table_3"))
            assert sampling["max_new_tokens"] == len(call.answer) + is_whole
    with pytest.raises(ConfigError, match="sessions of tasks that are not warm"):
        made(9)
