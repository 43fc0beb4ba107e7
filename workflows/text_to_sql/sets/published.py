"""A published set of questions, ready to run: `read_set` reads either format and selects the questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentspec.errors import ConfigError
from agentspec.workflows.text_to_sql.sets import bird, spider
from agentspec.workflows.text_to_sql.sets.folders import database_paths, find_questions
from agentspec.workflows.text_to_sql.sql.sources import Databases, Descriptions
from agentspec.workflows.text_to_sql.tasks import Task

SetFormat = Literal["bird", "spider"]


@dataclass(frozen=True, slots=True)
class _Format:
    """How a format is read.

    Args:
        question_files: Names of question files, the default first.
        read_questions: Reads all questions of a file.
        read_descriptions: Reads the descriptions of columns, given the questions' file and the databases' paths.
    """

    question_files: tuple[str, ...]
    read_questions: Callable[[Path], list[Task]]
    read_descriptions: Callable[[Path, dict[str, Path]], dict[str, Descriptions]]


FORMATS: dict[SetFormat, _Format] = {
    "bird": _Format(bird.QUESTION_FILES, bird.read_questions, bird.read_descriptions),
    "spider": _Format(spider.QUESTION_FILES, spider.read_questions, spider.read_descriptions),
}


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """The selected questions of a set with their databases. `file` holds the questions, `others` were found beside it."""

    tasks: list[Task]
    databases: Databases
    file: Path
    others: list[Path]


def read_set(
    name: SetFormat,
    folder: Path,
    *,
    questions: Path | None = None,
    difficulty: str | None = None,
    limit: int | None = None,
) -> PublishedSet:
    """Read a set from the folder that it was unzipped to, or from a folder one or two levels above. `questions` is a
    path, or a name within the folder; by default, the development set. Only the first `limit` questions of this
    difficulty are kept. Raises ConfigError if a file is missing or not in the format, or no question is left."""
    form = FORMATS[name]
    file, others = find_questions(folder, form.question_files, questions)
    tasks = form.read_questions(file)
    if difficulty is not None:
        tasks = _of_difficulty(tasks, difficulty, file)
    tasks = tasks[:limit]
    paths = database_paths(folder, file, list(dict.fromkeys(task.database for task in tasks)))
    return PublishedSet(tasks, Databases(paths, {}, form.read_descriptions(file, paths)), file, others)


def _of_difficulty(tasks: list[Task], difficulty: str, file: Path) -> list[Task]:
    chosen = [task for task in tasks if task.difficulty == difficulty]
    if not chosen:
        there = ", ".join(sorted({task.difficulty for task in tasks if task.difficulty}))
        raise ConfigError(
            f"--difficulty must be one that {file.name} names, got {difficulty!r}; "
            + (f"it names {there}" if there else "it names none, so leave the option out")
        )
    return chosen
