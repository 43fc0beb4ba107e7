"""Databases as the agents see them: a file, its schema, and notes to look up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.workflows.text_to_sql.agents.ranking import Ranking
from agentspec.workflows.text_to_sql.sql.schema import Schema, read_schema

_ENDINGS = (".sqlite", ".sqlite3", ".db")
_SHOWN_VALUES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A database for questions. `notes` ranks the notes on its columns and values."""

    name: str
    path: Path
    schema: Schema
    notes: Ranking


def open_source(name: str, path: Path, written_notes: Sequence[str] = ()) -> Source:
    """Read a database's schema and index its notes: first those that people wrote, then those made from the schema.

    Raises:
        sqlite3.Error: The file cannot be read, or is not a database.
    """
    schema = read_schema(path, name)
    return Source(name, path, schema, Ranking([*written_notes, *schema_notes(schema)]))


def schema_notes(schema: Schema) -> Iterator[str]:
    """One note per column, with its reference and some of its values, and one note per value that was read."""
    for table in schema.tables:
        for column in table.columns:
            place = f"{table.name}.{column.name}"
            reference = f", refers to {column.refers}" if column.refers else ""
            sample = ", ".join(map(literal, column.values[:_SHOWN_VALUES]))
            more = ", ..." if len(column.values) > _SHOWN_VALUES else ""
            yield f"{place} {column.type or 'ANY'}{reference}" + (f", for example {sample}{more}" if sample else "")
    for table in schema.tables:
        for column in table.columns:
            yield from (f"{table.name}.{column.name} = {literal(value)}" for value in column.values)


def literal(text: str) -> str:
    """The text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def find_databases(path: Path) -> dict[str, Path]:
    """SQLite files by name: the file at `path`, or the files in the folder at `path` and in its direct subfolders.

    Raises:
        ConfigError: There is no SQLite file.
    """
    if path.is_file():
        return {path.stem: path}
    files = [file for pattern in ("*", "*/*") for file in sorted(path.glob(pattern)) if file.suffix in _ENDINGS]
    if not files:
        raise ConfigError(
            f"--databases must be a SQLite file, or a folder with files that end in {', '.join(_ENDINGS)}; got {path}"
        )
    return {file.stem: file for file in reversed(files)}


def read_notes(path: Path) -> dict[str, list[str]]:
    """Notes by database from JSON lines `{"note": ..., "database": ...}`; those without a database are under "".

    Raises:
        ConfigError: The file cannot be read, or a line is not a note.
    """
    notes: dict[str, list[str]] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the notes {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            note, database = record["note"], record.get("database", "")
            if not isinstance(note, str) or not isinstance(database, str):
                raise TypeError("note and database must be texts")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f'{path.name}:{number}: a note is a JSON object {{"note": TEXT, "database": NAME}}, got another: {error!r}'
            ) from None
        notes.setdefault(database, []).append(note)
    return notes


def notes_for(notes: Mapping[str, list[str]], database: str) -> list[str]:
    """The notes on this database and those on all databases."""
    return [*notes.get(database, []), *notes.get("", [])]
