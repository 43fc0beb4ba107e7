from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from agentspec.analysis.replay.tokenizer import load_tokenizer
from agentspec.errors import ConfigError
from agentspec.evals.gpu.work import Cell, RecordedCall, Trace, load_cells, make_cells, save_cells
from agentspec.evals.text_to_sql import MODEL_FOLDER


def drawn_cell(rng: random.Random) -> Cell:
    def call() -> RecordedCall:
        prompt, answer = (np.array([rng.randrange(9) for _ in range(rng.randint(1, 6))], np.int32) for _ in range(2))
        return RecordedCall(prompt, answer, bool(rng.getrandbits(1)))

    sessions = tuple(tuple(call() for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(0, 3)))
    return Cell(rng.choice(["sql", "swe"]), rng.choice([0, 1, 16]), rng.randrange(2), sessions)


def told(cell: Cell) -> object:
    sessions = [[(c.prompt.tolist(), c.answer.tolist(), c.is_whole) for c in session] for session in cell.sessions]
    return cell.trace, cell.clients, cell.repetition, sessions


def test_cells_are_read_as_they_were_written(tmp_path: Path) -> None:
    rng = random.Random(0)
    for i in range(20):
        cells = [drawn_cell(rng) for _ in range(4)]
        save_cells(tmp_path / f"{i}.npz", cells)
        assert [told(cell) for cell in load_cells(tmp_path / f"{i}.npz")] == [told(cell) for cell in cells]


def test_what_is_no_work_is_refused(tmp_path: Path) -> None:
    for content in (None, b"no archive"):
        path = tmp_path / "work.npz"
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
    tokenizer = load_tokenizer(MODEL_FOLDER / "tokenizer.json")
    of = Trace(file="calls.jsonl", calls=3, warm=4, sessions=2, most=5, alone=1)

    def made(repetitions: int) -> list[Cell]:
        return make_cells(
            "sql", of, tmp_path, tokenizer, clients=(1, 4), repetitions=repetitions, max_prompt_tokens=200,
            max_answer_tokens=8, seed=3, vocab_size=1536, end=2,
        )  # fmt: skip

    cells = made(2)
    shape = [(cell.clients, cell.repetition, len(cell.sessions)) for cell in cells]
    assert shape == [(0, 0, 4), (1, 0, 1), (4, 0, 5), (1, 1, 1), (4, 1, 5)]

    def task(prompt: np.ndarray) -> str:
        return tokenizer.decode(prompt).split("of task ")[1].split()[0]

    warm = {task(session[0].prompt) for session in cells[0].sessions}
    measured = [session for cell in cells[1:] for session in cell.sessions]
    assert warm.isdisjoint(task(session[0].prompt) for session in measured)
    prompts = [call.prompt.tobytes() for session in measured for call in session]
    assert len(set(prompts)) == len(prompts)
    for session in measured:
        assert len(session) <= 3
        for one, following in pairwise(session):
            assert following.prompt[: len(one.prompt)].tolist() == one.prompt.tolist()
        for call in session:
            # The small model's tokenizer has no end of turn. Its loader adds one, which is beyond the model's vocabulary.
            assert call.prompt.max() < 1536 and len(call.prompt) <= 200 and len(call.answer) <= 8
            body = call.body()["sampling_params"]
            assert body["custom_params"]["agentspec"]["replay"]["ids"] == call.answer.tolist()
            assert body["max_new_tokens"] == len(call.answer) + call.is_whole
    with pytest.raises(ConfigError, match="sessions of tasks that are not warm"):
        made(9)
