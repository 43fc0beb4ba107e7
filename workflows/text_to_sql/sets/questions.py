"""Reads a set's JSON list of questions, with errors that name the question and the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.workflows.text_to_sql.tasks import Task

_LONGEST_ANNOTATION = 60


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises ConfigError if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} must be a JSON file, but reading it failed: {error}; unzip the set again") from error


def read_tasks(path: Path, task_of: Callable[[dict[str, Any], str], Task]) -> list[Task]:
    """Read the questions of a JSON list. `task_of` makes a question of a record, given the identity that it has by its
    position; a `ValueError` says what is wrong with the record. Raises ConfigError if the file cannot be read, or a
    record is not a question."""
    records = read_json(path)
    if not isinstance(records, list) or not records:
        raise ConfigError(f"{path.name} must be a JSON list of questions, got {type(records).__name__} without any")
    tasks: list[Task] = []
    taken: set[str] = set()
    for number, record in enumerate(records):
        by_position = f"{path.stem}-{number}"
        try:
            if not isinstance(record, dict):
                raise TypeError(f"it must be a JSON object, got {type(record).__name__}")
            task = task_of(record, by_position)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path.name} is not as it was published, at question {number}: {error}") from None
        if task.identity in taken:
            raise ConfigError(
                f"{path.name} gives the id {task.identity!r} twice, the second time at question {number}; ids must be unique"
            )
        taken.add(task.identity)
        tasks.append(task)
    return tasks


def text_of(record: dict[str, Any], name: str, *, needed: bool = False) -> str:
    """The text of a field, on one line; "" if it is missing and not needed. Raises ValueError if the field is no text,
    or is missing although it is needed."""
    value = record.get(name)
    if value is None and not needed:
        return ""
    if not isinstance(value, str) or (needed and not value.strip()):
        got = "nothing" if value is None else repr(value)
        raise ValueError(f"the field {name!r} must be a text, got {got}; the fields are {', '.join(sorted(record))}")
    return " ".join(value.split())


def sql_of(record: dict[str, Any], name: str) -> str:
    """The gold query of a record, as it is written; "" if it has none. Raises ValueError if the field is no text."""
    text_of(record, name)
    # Line breaks can end a comment of the query, so they stay.
    return str(record.get(name) or "").strip()


def shortened(text: str, length: int) -> str:
    """The text, or its beginning up to a space, with "..." in place of the rest."""
    return text if len(text) <= length else text[: length - 3].rpartition(" ")[0] + "..."


def annotation(text: str) -> str:
    """The text as it can stand in an SQL comment beside a column."""
    return shortened(text, _LONGEST_ANNOTATION).replace("*/", "* /")
