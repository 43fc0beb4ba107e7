"""Spider: questions with gold queries, and a file with human names of tables and columns.

    dev.json, train_spider.json, train_others.json, test.json      [{db_id, question, query, ...}, ...]
    tables.json, test_tables.json                                  [{db_id, table_names, table_names_original,
                                                                     column_names, column_names_original, ...}, ...]
    database/DB/DB.sqlite, test_database/DB/DB.sqlite

The files give no ids, so a question's id is the file's name with its position. Their difficulty is the hardness that
Spider's own scorer derives from the gold query.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.workflows.text_to_sql.agents.ranking import words_of
from agentspec.workflows.text_to_sql.sets.questions import annotation, read_json, read_tasks, sql_of, text_of
from agentspec.workflows.text_to_sql.sql.hardness import hardness
from agentspec.workflows.text_to_sql.sql.sources import Description, Descriptions
from agentspec.workflows.text_to_sql.tasks import Task

QUESTION_FILES = ("dev.json", "train_spider.json", "train_others.json", "test.json")
"""Files of questions, the default first."""

_TABLE_FILES = ("tables.json", "test_tables.json")


def read_questions(path: Path) -> list[Task]:
    """Read the questions. Raises ConfigError if the file cannot be read, or is not in Spider's format."""
    return read_tasks(path, _task)


def _task(record: dict[str, Any], identity: str) -> Task:
    if "query" not in record and "SQL" in record:
        raise ValueError("it has the field 'SQL' of BIRD in place of 'query'; use --format bird")
    gold = sql_of(record, "query")
    return Task(
        identity,
        text_of(record, "db_id", needed=True),
        text_of(record, "question", needed=True),
        gold,
        difficulty=hardness(gold) if gold else "",
    )


def read_descriptions(questions: Path, paths: dict[str, Path]) -> dict[str, Descriptions]:
    """Read the human names of columns, where they say more than the names in the database. Raises ConfigError if a file
    of tables is not in Spider's format."""
    found: dict[str, Descriptions] = {}
    # The file of the test set comes first for the test set. Other questions need it only if the first lacks a database.
    files = _TABLE_FILES if not questions.stem.startswith("test") else _TABLE_FILES[::-1]
    for file in (questions.with_name(name) for name in files):
        entries = read_json(file) if file.is_file() else []
        try:
            for entry in entries:
                if entry["db_id"] in paths:
                    found.setdefault(entry["db_id"], dict(_named(entry)))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ConfigError(
                f"{file.name} must be a JSON list of databases with db_id, table_names_original, column_names and "
                f"column_names_original, but reading it failed: {error!r}; unzip the set again"
            ) from None
    return found


def _named(entry: dict[str, Any]) -> Iterator[tuple[tuple[str, str], Description]]:
    tables = entry["table_names_original"]
    human_tables = entry.get("table_names", tables)
    for (number, human), (_, column) in zip(entry["column_names"], entry["column_names_original"], strict=True):
        # The first column is "*", of no table.
        if number < 0:
            continue
        table, human_table, name = tables[number], human_tables[number], " ".join(human.split())
        is_renamed = words_of(name) != words_of(column)
        note = name
        if words_of(human_table) != words_of(table):
            note += f" of {human_table}"
        elif not is_renamed:
            continue
        yield (table.lower(), column.lower()), Description(annotation(name) if is_renamed else "", note)
