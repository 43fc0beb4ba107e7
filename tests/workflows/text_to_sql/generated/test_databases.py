from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from every import every

from agentspec.workflows.text_to_sql import DATABASES, Database
from agentspec.workflows.text_to_sql.generated.databases import rows_of
from agentspec.workflows.text_to_sql.generated.domains import SHOP, database_named


def test_rows_depend_on_the_seed_alone() -> None:
    assert list(rows_of(SHOP, seed=1)) == list(rows_of(SHOP, seed=1))
    assert list(rows_of(SHOP, seed=1)) != list(rows_of(SHOP, seed=2))


def test_rows_are_those_that_the_model_was_trained_on() -> None:
    # A change here changes answers and questions, and the shipped model must then be retrained.
    customers = next(rows for table, rows in rows_of(SHOP) if table.name == "customers")
    assert customers[0] == (1, "Victor Klein", "Vienna", "business", 2021)


def test_foreign_keys_hold(databases: dict[Database, Path]) -> None:
    for path in databases.values():
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_some_parents_have_no_children(databases: dict[Database, Path]) -> None:
    # The question "Which customers have no orders" needs an answer that is not empty.
    with closing(sqlite3.connect(databases[SHOP])) as connection:
        query = "SELECT COUNT(*) FROM customers WHERE id NOT IN (SELECT customer_id FROM orders)"
        assert connection.execute(query).fetchone()[0] > 0


@every("database", DATABASES)
def test_schema_text_names_every_table_and_column(database: Database) -> None:
    lines = dict(line.split(": ", 1) for line in database.schema_text().splitlines()[1:])
    assert list(lines) == [table.name for table in database.tables]
    for table in database.tables:
        assert [cell.split(" = ")[0] for cell in lines[table.name].split(", ")] == [c.name for c in table.columns]


def test_text_of_one_table() -> None:
    assert SHOP.table_text("orders") == "id, customer_id = customers.id, ordered_on, status, total"


def test_unknown_database_lists_the_known() -> None:
    with pytest.raises(KeyError, match="shop"):
        database_named("bank")
