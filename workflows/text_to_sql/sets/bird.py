"""BIRD: questions with evidence and difficulty, and CSV files that describe the columns of each database.

    dev.json                                             [{question_id, db_id, question, evidence, SQL, difficulty}, ...]
    dev_databases/DB/DB.sqlite
    dev_databases/DB/database_description/TABLE.csv      original_column_name, column_name, column_description,
                                                         data_format, value_description

The training set has the same form without ids and difficulties. Mini-Dev has `mini_dev_sqlite.json`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentspec.workflows.text_to_sql.agents.ranking import words_of
from agentspec.workflows.text_to_sql.sets.questions import annotation, read_tasks, shortened, sql_of, text_of
from agentspec.workflows.text_to_sql.sql.sources import Description, Descriptions
from agentspec.workflows.text_to_sql.tasks import Task

QUESTION_FILES = ("dev.json", "mini_dev_sqlite.json", "train.json")
"""Files of questions, the default first."""

_SHORTEST_CELL = 2
_LONGEST_NOTE = 300


def read_questions(path: Path) -> list[Task]:
    """Read the questions. Their ids are the file's name with `question_id` or, where there is none, with their
    position. Raises ConfigError if the file cannot be read, or is not in BIRD's format."""
    return read_tasks(path, lambda record, identity: _task(path, record, identity))


def _task(path: Path, record: dict[str, Any], identity: str) -> Task:
    if "SQL" not in record and "query" in record:
        raise ValueError("it has the field 'query' of Spider in place of 'SQL'; use --format spider")
    number = record.get("question_id")
    return Task(
        identity if number is None else f"{path.stem}-{number}",
        text_of(record, "db_id", needed=True),
        text_of(record, "question", needed=True),
        sql_of(record, "SQL"),
        text_of(record, "evidence"),
        text_of(record, "difficulty"),
    )


def read_descriptions(_questions: Path, paths: dict[str, Path]) -> dict[str, Descriptions]:
    """Read the descriptions of the columns. Databases without a folder `database_description` have none."""
    return {name: dict(_described(path.parent / "database_description")) for name, path in paths.items()}


def _described(folder: Path) -> Iterator[tuple[tuple[str, str], Description]]:
    for file in sorted(folder.glob("*.csv")) if folder.is_dir() else ():
        # Archives made on a Mac hold files beside the data whose names begin with a dot.
        if file.name.startswith("."):
            continue
        for row in _rows(file):
            column = row.get("original_column_name", "")
            if column:
                yield (file.stem.strip().lower(), column.lower()), _description(column, row)


def _rows(file: Path) -> Iterator[dict[str, str]]:
    """The rows of a CSV file, with names in lower case, and without stray spaces and line breaks."""
    reader = csv.reader(io.StringIO(_decoded(file.read_bytes()), newline=""))
    names: list[str] = []
    try:
        for cells in reader:
            clean = [" ".join(cell.split()) for cell in cells]
            if not names:
                names = [name.lower() for name in clean]
            else:
                yield dict(zip(names, clean, strict=False))
    except csv.Error:
        # The descriptions are a help, not a need, so a damaged rest of a file is left out.
        return


def _decoded(data: bytes) -> str:
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    return data.decode("latin-1")


def _description(column: str, row: dict[str, str]) -> Description:
    name, meaning, values = (row.get(field, "") for field in ("column_name", "column_description", "value_description"))
    known = set(words_of(column))
    # Many cells repeat the name of the column.
    name = name if set(words_of(name)) - known else ""
    meaning = meaning if set(words_of(meaning)) - known and meaning != name else ""
    # A meaning is more than a name, as long as the annotation shows all of it.
    short = meaning if annotation(meaning) == meaning and meaning else name or meaning
    parts = [part for part in (name, meaning) if part]
    if len(values) >= _SHORTEST_CELL:
        parts.append(f"values: {values}")
    return Description(annotation(short), shortened("; ".join(parts), _LONGEST_NOTE))
