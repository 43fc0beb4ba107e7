"""Functions to edit, from Python files."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads import TASKS
from agentspec.evals.workloads.edits import SOURCES, edits_of
from agentspec.evals.workloads.task import Conversation, TaskInputs

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


def test_each_function_is_asked_for_once(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / SOURCES, "w:xz") as archive:
        for name in ("one.py", "copy.py", "notes.txt"):
            info = tarfile.TarInfo(name)
            info.size = len(FILE)
            archive.addfile(info, io.BytesIO(FILE.encode()))
    pool = TASKS["edits"].pool(TaskInputs(model=MODEL_FOLDER, data=tmp_path, learnt_calls=1))
    units = [*pool.learnt, *pool.draw(9, 1)]
    prompts = [tuple(unit.calls[0].body["input_ids"]) for unit in units if isinstance(unit, Conversation)]
    assert len(prompts) == 2 == len(set(prompts))
