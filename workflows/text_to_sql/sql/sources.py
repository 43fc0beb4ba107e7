"""Databases as the agents see them: a file, its schema, descriptions of its columns, and notes to look up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.record_file import READ_ERRORS, filled_lines
from agentspec.workflows.text_to_sql.agents.ranking import Ranking
from agentspec.workflows.text_to_sql.sql.schema import Schema, SchemaTable, read_schema

_ENDINGS = (".sqlite", ".sqlite3", ".db")
_SHOWN_VALUES = 4


@dataclass(frozen=True, slots=True)
class Description:
    """What a column means. `short` annotates the column in the schema, `note` is a note to look up; either may be ""."""

    short: str
    note: str


Descriptions = Mapping[tuple[str, str], Description]
"""Descriptions by table and column, both in lower case."""


@dataclass(frozen=True, slots=True)
class Databases:
    """SQLite files by name, people's notes about them (see `read_notes`), and descriptions of their columns."""

    paths: Mapping[str, Path]
    notes: Mapping[str, list[str]]
    descriptions: Mapping[str, Descriptions] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A database for questions.

    `notes` ranks the notes on its columns and values, and `places` tells the table and the column of each note that has
    one. `columns` ranks the columns, in the order of the schema, by their names and descriptions.
    """

    name: str
    path: Path
    schema: Schema
    notes: Ranking
    places: Mapping[str, tuple[str, str]]
    columns: Ranking


def open_source(
    name: str, path: Path, written_notes: Sequence[str] = (), descriptions: Descriptions | None = None
) -> Source:
    """Read a database's schema and index its notes: first those that people wrote, then those made from the schema and
    from the descriptions of columns that the database has. Raises sqlite3.Error if the file cannot be read, or is
    not a database."""
    known = descriptions or {}
    schema = _described(read_schema(path, name), known)
    placed = [*_described_notes(schema, known), *_schema_notes(schema)]
    return Source(
        name,
        path,
        schema,
        Ranking([*written_notes, *(note for note, _, _ in placed)]),
        {note: (table, column) for note, table, column in placed},
        Ranking([_column_words(table, place, known) for table in schema.tables for place in range(len(table.columns))]),
    )


def _described(schema: Schema, descriptions: Descriptions) -> Schema:
    if not descriptions:
        return schema
    tables = []
    for table in schema.tables:
        columns = []
        for column in table.columns:
            found = descriptions.get((table.name.lower(), column.name.lower()))
            columns.append(replace(column, description=found.short) if found else column)
        tables.append(replace(table, columns=tuple(columns)))
    return replace(schema, tables=tuple(tables))


def _column_words(table: SchemaTable, place: int, descriptions: Descriptions) -> str:
    column = table.columns[place]
    found = descriptions.get((table.name.lower(), column.name.lower()))
    return f"{table.name} {column.name} {found.note if found else ''}"


def _described_notes(schema: Schema, descriptions: Descriptions) -> Iterator[tuple[str, str, str]]:
    for table in schema.tables:
        for column in table.columns:
            found = descriptions.get((table.name.lower(), column.name.lower()))
            if found and found.note:
                yield f"{table.name}.{column.name} means {found.note}", table.name, column.name


def _schema_notes(schema: Schema) -> Iterator[tuple[str, str, str]]:
    """One note per column, with its reference and some of its values, and one note per value that was read."""
    for table in schema.tables:
        for column in table.columns:
            place = f"{table.name}.{column.name}"
            reference = f", refers to {column.refers}" if column.refers else ""
            sample = ", ".join(map(literal, column.values[:_SHOWN_VALUES]))
            more = ", ..." if len(column.values) > _SHOWN_VALUES else ""
            note = f"{place} {column.type or 'ANY'}{reference}" + (f", for example {sample}{more}" if sample else "")
            yield note, table.name, column.name
    for table in schema.tables:
        for column in table.columns:
            for value in column.values:
                yield f"{table.name}.{column.name} = {literal(value)}", table.name, column.name


def literal(text: str) -> str:
    """The text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def find_databases(path: Path) -> dict[str, Path]:
    """SQLite files by name: the file at `path`, or the files in the folder at `path` and in its direct subfolders.
    Raises ConfigError if there is no SQLite file."""
    if path.is_file():
        return {path.stem: path}
    files = [file for pattern in ("*", "*/*") for file in sorted(path.glob(pattern)) if file.suffix in _ENDINGS]
    if not files:
        raise ConfigError(
            f"--databases must be a SQLite file, or a folder with files that end in {', '.join(_ENDINGS)}; got {path}"
        )
    return {file.stem: file for file in reversed(files)}


def read_notes(path: Path) -> dict[str, list[str]]:
    """Notes by database from JSON lines `{"note": ..., "database": ...}`; those without a database are under "". Raises
    ConfigError if the file cannot be read, or a line is not a note."""
    notes: dict[str, list[str]] = {}
    try:
        lines = list(filled_lines(path))
    except READ_ERRORS as error:
        raise ConfigError(f"cannot read the notes {path}: {error}") from error
    for number, line in lines:
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
