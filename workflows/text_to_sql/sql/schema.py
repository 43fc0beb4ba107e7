"""The schema of a SQLite file: tables, columns, keys, and sample values of its columns."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from agentspec.workflows.text_to_sql.sql.execute import connect_read_only

_MOST_VALUES = 400
_SCANNED_ROWS = 20_000
_LONGEST_VALUE = 60
_SECONDS_A_COLUMN = 2.0
"""A column of a view that takes longer to read has no sample values."""
_INSTRUCTIONS_PER_CHECK = 10_000


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """A column; `refers` is the `table.column` that its foreign key names, "" without one.

    `values` are distinct texts of the column, sorted; a sample if there are many, and empty for numbers. `description`
    says in a few words what the column means, where its name does not.
    """

    name: str
    type: str
    is_key: bool
    refers: str
    values: tuple[str, ...]
    description: str = ""

    def text(self) -> str:
        """`customer_id INTEGER REFERENCES customers.id`, with the description as an SQL comment."""
        words = [quoted_name(self.name), self.type]
        words += ["PRIMARY KEY"] if self.is_key else []
        words += [f"REFERENCES {self.refers}"] if self.refers else []
        words += [f"/* {self.description} */"] if self.description else []
        return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True)
class SchemaTable:
    """A table or a view."""

    name: str
    columns: tuple[SchemaColumn, ...]

    def text(self) -> str:
        """One line, `orders(id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customers.id)`."""
        return f"{quoted_name(self.name)}({', '.join(column.text() for column in self.columns)})"


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a database."""

    database: str
    tables: tuple[SchemaTable, ...]

    def text(self) -> str:
        """The database's name and one line per table."""
        return "\n".join([f"database {self.database}", *(table.text() for table in self.tables)])

    def known_tables(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the names that are tables, in the schema's spelling. A name may include a column or quotes."""
        by_name = {table.name.lower(): table.name for table in self.tables}
        found = (by_name.get(_bare(name)) or by_name.get(_bare(name.split(".")[0])) for name in names)
        return tuple(dict.fromkeys(name for name in found if name))

    def known_columns(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The given names (`column` or `table.column`) that are columns, as `table.column` in the schema's spelling."""
        found = []
        for name in names:
            table_name, _, column_name = name.rpartition(".")
            for table in self.tables:
                if table_name and _bare(table_name) != table.name.lower():
                    continue
                found += [f"{table.name}.{c.name}" for c in table.columns if c.name.lower() == _bare(column_name)]
        return tuple(dict.fromkeys(found))


def quoted_name(name: str) -> str:
    """The name as SQL needs it, in double quotes unless it is a plain word."""
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'


def read_schema(path: Path, name: str) -> Schema:
    """Read the schema and sample values of the SQLite file at `path`. Raises sqlite3.Error if the file cannot be read,
    or is not a database."""
    with closing(connect_read_only(path)) as connection:
        names = [
            row[0]
            for row in connection.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
                "ORDER BY rowid"
            )
        ]
        found = ((table, _columns(connection, table)) for table in names)
        tables = tuple(SchemaTable(table, columns) for table, columns in found if columns)
    if not tables:
        raise sqlite3.DatabaseError(f"{path.name} holds no table")
    return Schema(name, tables)


def _columns(connection: sqlite3.Connection, table: str) -> tuple[SchemaColumn, ...]:
    """The columns; none of a view of a table that is gone, or a table of an extension, which no statement can read."""
    try:
        refers = {
            row[3]: f"{row[2]}.{row[4]}" if row[4] else str(row[2])
            for row in connection.execute(f"PRAGMA foreign_key_list({_quoted(table)})")
        }
        return tuple(
            SchemaColumn(name, kind, bool(key), refers.get(name, ""), _values(connection, table, name))
            for _, name, kind, _, _, key in connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
        )
    except sqlite3.OperationalError as error:
        if "no such" not in str(error):
            raise
        return ()


def _values(connection: sqlite3.Connection, table: str, column: str) -> tuple[str, ...]:
    name = _quoted(column)
    # Only part of the rows is read: it is enough for a sample, and a view may be slow to read, or never end.
    deadline = time.monotonic() + _SECONDS_A_COLUMN
    connection.set_progress_handler(lambda: int(time.monotonic() > deadline), _INSTRUCTIONS_PER_CHECK)
    try:
        rows = connection.execute(
            f"SELECT DISTINCT {name} FROM (SELECT {name} FROM {_quoted(table)} LIMIT {_SCANNED_ROWS}) "
            f"WHERE typeof({name}) = 'text' AND length({name}) BETWEEN 1 AND {_LONGEST_VALUE} ORDER BY 1 LIMIT {_MOST_VALUES}"
        )
        return tuple(row[0] for row in rows)
    except sqlite3.OperationalError as error:
        if str(error) != "interrupted":
            raise
        return ()
    finally:
        connection.set_progress_handler(None, 0)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _bare(name: str) -> str:
    return name.strip().strip('"`[]').lower()
