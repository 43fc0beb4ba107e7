"""Small seeded SQLite databases, with their schema text and the annotations for wording questions."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Literal

Kind = Literal["key", "ref", "label", "category", "number", "date"]
Value = str | int | float | None

_SQL_TYPES: dict[str, str] = {
    "key": "INTEGER PRIMARY KEY",
    "ref": "INTEGER NOT NULL",
    "label": "TEXT NOT NULL",
    "category": "TEXT NOT NULL",
    "number": "REAL",
    "date": "TEXT",
}


@dataclass(frozen=True)
class Column:
    """A column, with the data to fill it and to word questions about it.

    `values` is the pool of a label or a category; `low`, `high`, `step` bound a number; `first`, `last` bound a date;
    `refers` names the parent table of a ref, and `relation` gives the words between child and parent ("placed by").
    `empty_share` is the share of NULL.
    """

    name: str
    kind: Kind
    phrase: str = ""
    values: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    step: float = 1
    first: date = date.min
    last: date = date.min
    refers: str = ""
    relation: str = ""
    empty_share: float = 0.0

    @property
    def sql_type(self) -> str:
        """SQLite type with its constraints."""
        if self.kind == "number" and float(self.step).is_integer():
            return "INTEGER"
        return _SQL_TYPES[self.kind]


@dataclass(frozen=True)
class Table:
    """A table with `rows` rows; `singular` and `plural` are the words for one row and for many."""

    name: str
    singular: str
    plural: str
    rows: int
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        """The column of that name. Raises KeyError with the known names if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"table {self.name} has no column {name!r}; it has {[c.name for c in self.columns]}")

    def of_kind(self, *kinds: Kind) -> list[Column]:
        """The columns of the given kinds, in table order."""
        return [column for column in self.columns if column.kind in kinds]

    @property
    def identity(self) -> Column:
        """The column that identifies a row for a person: the label, or the key if there is no label."""
        return (self.of_kind("label") or self.of_kind("key"))[0]


@dataclass(frozen=True)
class Database:
    """A database. Parents come before their children in `tables`."""

    name: str
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table:
        """The table of that name. Raises KeyError with the known names if there is none."""
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(f"database {self.name} has no table {name!r}; it has {[t.name for t in self.tables]}")

    def references(self) -> list[tuple[Table, Column, Table]]:
        """Every foreign key as (child, ref column, parent)."""
        return [(child, column, self.table(column.refers)) for child in self.tables for column in child.of_kind("ref")]

    def table_text(self, name: str) -> str:
        """The columns of one table, `id, customer_id = customers.id, total`."""
        columns = self.table(name).columns
        return ", ".join(f"{c.name} = {c.refers}.id" if c.kind == "ref" else c.name for c in columns)

    def schema_text(self) -> str:
        """One line per table, `orders: id, customer_id = customers.id, total`."""
        lines = [f"database {self.name}"]
        return "\n".join([*lines, *(f"{table.name}: {self.table_text(table.name)}" for table in self.tables)])


def rows_of(database: Database, *, seed: int = 0) -> Iterator[tuple[Table, list[tuple[Value, ...]]]]:
    """Yield every table with its rows, parents first; the same seed gives the same rows on every platform."""
    counts = {table.name: table.rows for table in database.tables}
    for table in database.tables:
        rng = random.Random(f"{seed}/{database.name}/{table.name}")
        labels = {c.name: rng.sample(c.values, table.rows) for c in table.of_kind("label")}
        yield (
            table,
            [
                tuple(_value(column, row, rng, labels, counts) for column in table.columns)
                for row in range(1, table.rows + 1)
            ],
        )


def _value(column: Column, row: int, rng: random.Random, labels: dict[str, list[str]], counts: dict[str, int]) -> Value:
    if column.kind == "key":
        return row
    if column.kind == "label":
        return labels[column.name][row - 1]
    if column.kind == "category":
        # The draw is skewed on purpose, so that counts by category differ.
        return column.values[min(rng.randrange(len(column.values)), rng.randrange(len(column.values) + 1))]
    if column.empty_share and rng.random() < column.empty_share:
        return None
    if column.kind == "ref":
        # The draw is skewed, and the last parents get no children, so that "which X have no Y" has an answer.
        parents = max(1, counts[column.refers] * 9 // 10)
        return 1 + min(rng.randrange(parents), rng.randrange(parents + parents // 2))
    if column.kind == "date":
        return (column.first + timedelta(days=rng.randrange((column.last - column.first).days + 1))).isoformat()
    steps = round((column.high - column.low) / column.step)
    value = column.low + column.step * rng.randint(0, steps)
    return int(value) if float(column.step).is_integer() else round(value, 2)


def create(database: Database, path: Path, *, seed: int = 0) -> None:
    """Write the database to a new SQLite file; an existing file is replaced."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = ON")
        for table, rows in rows_of(database, seed=seed):
            cells = [f"{c.name} {c.sql_type}" for c in table.columns]
            cells += [f"FOREIGN KEY ({c.name}) REFERENCES {c.refers}(id)" for c in table.of_kind("ref")]
            connection.execute(f"CREATE TABLE {table.name} ({', '.join(cells)})")
            marks = ", ".join("?" * len(table.columns))
            connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", rows)


def create_all(databases: tuple[Database, ...], folder: Path, *, seed: int = 0) -> dict[str, Path]:
    """Write every database under `folder` and return the path of each by name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {database.name: folder / f"{database.name}.sqlite" for database in databases}
    for database in databases:
        create(database, paths[database.name], seed=seed)
    return paths
