"""Questions to answer: from a file, or drawn over the generated databases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.record_file import READ_ERRORS, filled_lines
from agentspec.workflows.text_to_sql.generated.databases import create_all
from agentspec.workflows.text_to_sql.generated.domains import DATABASES
from agentspec.workflows.text_to_sql.generated.questions import Question, Split, draw_questions

_QUESTION_FIELDS = ("question", "text")
_SQL_FIELDS = ("sql", "gold", "query", "SQL")
_DATABASE_FIELDS = ("database", "db", "db_id")
_IDENTITY_FIELDS = ("id", "task", "question_id", "session")


@dataclass(frozen=True, slots=True)
class Task:
    """A question on a database. `identity` is unique in a run.

    `sql` is the gold SQL, `evidence` what a person wrote to explain the question, and `difficulty` the name that the set
    of questions gives to its difficulty. Each is "" if it is unknown.
    """

    identity: str
    database: str
    question: str
    sql: str = ""
    evidence: str = ""
    difficulty: str = ""


def read_tasks(path: Path, default_database: str = "") -> list[Task]:
    """Read questions from JSON lines, plain or compressed (.xz, .gz).

    A line is `{"question", "database", "sql"?, "id"?, "difficulty"?}`; `db`, `db_id`, `gold` and `query` are accepted,
    too. If a line is a recorded chat, its question is the first user message. `default_database` is that of lines that
    name none. Raises ConfigError if the file cannot be read, or a line is not a question.
    """
    tasks: list[Task] = []
    taken: set[str] = set()
    for number, line in _lines(path):
        try:
            record = json.loads(line)
            task = _task(record, f"{path.name.split('.')[0]}-{number}", default_database)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path.name}:{number}: {error}; a question needs `question` and `database`") from None
        if task.identity in taken:
            raise ConfigError(f"{path.name}:{number}: the id {task.identity!r} is taken; ids must be unique")
        taken.add(task.identity)
        tasks.append(task)
    if not tasks:
        raise ConfigError(f"{path} holds no questions")
    return tasks


def _lines(path: Path) -> list[tuple[int, bytes]]:
    try:
        return list(filled_lines(path))
    except READ_ERRORS as error:
        raise ConfigError(f"cannot read the questions {path}: {error}") from error


def _task(record: Any, fallback_identity: str, default_database: str) -> Task:
    if not isinstance(record, dict):
        raise TypeError("not an object")
    question = _first(record, _QUESTION_FIELDS) or _asked(record.get("messages"))
    database = _first(record, _DATABASE_FIELDS) or default_database
    if not question or not database:
        raise ValueError(f"no {'database' if question else 'question'} in {', '.join(sorted(map(str, record)))}")
    identity = _first(record, _IDENTITY_FIELDS) or fallback_identity
    # Prompts need the question on one line.
    difficulty = _first(record, ("difficulty",))
    return Task(identity, database, " ".join(question.split()), _first(record, _SQL_FIELDS), difficulty=difficulty)


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = record.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip()
    return ""


def _asked(messages: Any) -> str:
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, dict) and message.get("role") == "user" and isinstance(message.get("content"), str):
            return str(message["content"]).strip().removeprefix("Question:").strip()
    return ""


@dataclass(frozen=True, slots=True)
class GeneratedTasks:
    """Questions on the generated databases. `questions` holds those of `tasks`, in the same order, with their parts."""

    tasks: list[Task]
    questions: list[Question]
    paths: dict[str, Path]


def generated_tasks(folder: Path, number: int, *, split: Split = "heldout", seed: int = 0) -> GeneratedTasks:
    """Write the generated databases under `folder` and draw `number` questions."""
    paths = create_all(DATABASES, folder)
    databases = {database: paths[database.name] for database in DATABASES}
    questions = list(islice(draw_questions(databases, split=split, seed=seed), number))
    tasks = [Task(f"{split}-{seed}-{i}", q.database, q.text, q.sql) for i, q in enumerate(questions)]
    return GeneratedTasks(tasks, questions, paths)
