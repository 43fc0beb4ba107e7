"""Functions to edit, from Python files."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads import TASKS
from agentspec.evals.workloads.edits import FORCED_EDITS, SOURCES, edits_of
from agentspec.evals.workloads.prompts import served_tokenizer
from agentspec.evals.workloads.task import Conversation, Task, TaskInputs

BODY = "\n".join(f"    total = total + amount * {i}" for i in range(16))
FILE = f"""\
def priced(amount, total=0):
{BODY}
    return total, "amounts"


def short(amount):
    return amount


class Till:
    def counted(self, amount):
        {BODY.strip().replace(chr(10), chr(10) + "    ")}
"""


def test_a_parameter_is_renamed_wherever_its_name_stands() -> None:
    first, second = edits_of(FILE)
    assert (first.old, first.new) == ("amount", "given_amount")
    assert first.edited.startswith("def priced(given_amount, total=0):\n    total = total + given_amount * 0\n")
    assert first.edited.endswith('return total, "amounts"'), "a longer name stays"
    assert second.source.startswith("def counted(self, amount):\n    total"), "a method loses its indentation"
    assert first.source in first.request


@pytest.mark.parametrize("task", FORCED_EDITS, ids=lambda task: task.name)
def test_a_forced_edit_brings_its_answer_and_perhaps_the_function(task: Task, tmp_path: Path) -> None:
    sources(tmp_path)
    inputs = TaskInputs(model=MODEL_FOLDER, data=tmp_path, learnt_calls=1)
    unit = task.pool(inputs).learnt[0]
    assert isinstance(unit, Conversation)
    call = unit.calls[0]
    sampling = call.body["sampling_params"]
    options = sampling["custom_params"]["agentspec"]
    assert options["replay"] == {"ids": list(call.answer)}
    assert sampling["max_new_tokens"] == inputs.max_answer_tokens == len(call.answer)
    text = served_tokenizer(MODEL_FOLDER).decode(np.array(call.body["input_ids"]))
    assert ("total = total" in text) == ("shown" in task.name)
    assert ("total = total" in options.get("prediction", "")) == ("predicted" in task.name)
    assert "replay" not in str(task.pool(replace(inputs, own_answers=True)).learnt[0])


def sources(folder: Path) -> None:
    with tarfile.open(folder / SOURCES, "w:xz") as archive:
        for name in ("one.py", "copy.py", "notes.txt"):
            info = tarfile.TarInfo(name)
            info.size = len(FILE)
            archive.addfile(info, io.BytesIO(FILE.encode()))


def test_each_function_is_asked_for_once(tmp_path: Path) -> None:
    sources(tmp_path)
    pool = TASKS["edits"].pool(TaskInputs(model=MODEL_FOLDER, data=tmp_path, learnt_calls=1))
    units = [*pool.learnt, *pool.draw(9, 1)]
    prompts = [tuple(unit.calls[0].body["input_ids"]) for unit in units if isinstance(unit, Conversation)]
    assert len(prompts) == 2 == len(set(prompts))
