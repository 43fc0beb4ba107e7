"""Databases as the agents know them: a file, its schema, and notes to look up."""

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
    """A database to ask questions of; `notes` ranks what is known about its columns and values."""

    name: str
    path: Path
    schema: Schema
    notes: Ranking


def open_source(name: str, path: Path, written_notes: Sequence[str] = ()) -> Source:
    """Read a database's schema and index its notes: those that people wrote, then those that the schema gives.

    Raises:
        sqlite3.Error: The file cannot be read, or is no database.
    """
    schema = read_schema(path, name)
    return Source(name, path, schema, Ranking([*written_notes, *schema_notes(schema)]))


def schema_notes(schema: Schema) -> Iterator[str]:
    """One note a column, with its reference and some of its values, and one for each value that was read."""
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
    """SQLite files by name: the file itself, or those in a folder, one level of folders deep.

    Raises:
        ConfigError: There is none.
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
        ConfigError: The file cannot be read, or a line is no note.
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
    """The notes on a database and those on all."""
    return [*notes.get(database, []), *notes.get("", [])]
