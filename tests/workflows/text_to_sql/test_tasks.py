from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from agentspec import ConfigError
from agentspec.workflows.text_to_sql.tasks import Task, generated_tasks, read_tasks


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


def test_lines_of_several_kinds(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "rules"}, {"role": "user", "content": "Question: How\nmany?"}]
    path = write(
        tmp_path / "asked.jsonl",
        {"id": 4, "question": "Who?", "database": "a", "sql": "SELECT 1"},
        "",
        {"question": "When?", "db_id": "b", "query": "SELECT 2"},
        {"task": "t", "db": "c", "gold": "SELECT 3", "messages": chat},
        {"question": "Where?"},
    )
    assert read_tasks(path, "only") == [
        Task("4", "a", "Who?", "SELECT 1"),
        Task("asked-3", "b", "When?", "SELECT 2"),
        Task("t", "c", "How many?", "SELECT 3"),
        Task("asked-5", "only", "Where?", ""),
    ]
    packed = tmp_path / "asked.jsonl.xz"
    packed.write_bytes(lzma.compress(path.read_bytes()))
    assert read_tasks(packed, "only") == read_tasks(path, "only")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{"], ":1:"),
        ([{"question": "Who?"}], "no database"),
        ([{"database": "a"}], "no question"),
        (["[]"], "not an object"),
        ([{"id": "x", "question": "Who?", "database": "a"}] * 2, "taken"),
        ([], "no questions"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, lines: list[Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_tasks(write(tmp_path / "bad.jsonl", *lines))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "torn.jsonl.xz").write_bytes(b"torn")
    for name in ("missing.jsonl", "torn.jsonl.xz"):
        with pytest.raises(ConfigError, match="cannot read the questions"):
            read_tasks(tmp_path / name)


def test_generated_tasks_are_the_questions(tmp_path: Path) -> None:
    drawn = generated_tasks(tmp_path, 12, seed=3)
    assert len({task.identity for task in drawn.tasks}) == 12
    assert [(t.database, t.question, t.sql) for t in drawn.tasks] == [
        (q.database, q.text, q.sql) for q in drawn.questions
    ]
    assert all(drawn.paths[task.database].exists() for task in drawn.tasks)
