from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentspec import ConfigError
from agentspec.workflows.text_to_sql import Database
from agentspec.workflows.text_to_sql.generated.domains import SHOP
from agentspec.workflows.text_to_sql.sql.execute import execute
from agentspec.workflows.text_to_sql.sql.schema import read_schema
from agentspec.workflows.text_to_sql.sql.sources import find_databases, notes_for, open_source, read_notes


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A database with names that need quotes, a view, a foreign key without a column, and bytes that are not text."""
    path = tmp_path / "odd.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            """
            CREATE TABLE "Order Lines" (id INTEGER PRIMARY KEY, "the ""note"" text" TEXT, made BLOB, item REFERENCES Items);
            CREATE TABLE Items (itemName TEXT, price REAL);
            CREATE VIEW Cheap AS SELECT itemName FROM Items WHERE price < 2;
            INSERT INTO Items VALUES ('it''s', 1), ('Lamp', 3), ('', 2);
            INSERT INTO "Order Lines" VALUES (1, CAST(x'ff41' AS TEXT), x'00', 1);
            """
        )
    return path


def test_views_that_never_end_or_cannot_be_read_do_not_stop_the_others(odd: Path) -> None:
    with closing(sqlite3.connect(odd)) as connection, connection:
        connection.executescript(
            """
            CREATE TABLE Gone (a TEXT);
            CREATE VIEW Broken AS SELECT a FROM Gone;
            CREATE VIEW Endless AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) AS n FROM r;
            DROP TABLE Gone;
            """
        )
    tables = {table.name: table for table in read_schema(odd, "odd").tables}
    assert "Broken" not in tables and tables["Endless"].columns[0].values == ()
    assert tables["Items"].columns[0].values == ("Lamp", "it's")


def test_schema_of_a_generated_database(databases: dict[Database, Path]) -> None:
    schema = read_schema(databases[SHOP], "shop")
    assert [table.name for table in schema.tables] == [table.name for table in SHOP.tables]
    text = schema.text().splitlines()
    assert text[0] == "database shop"
    assert "customer_id INTEGER REFERENCES customers.id" in text[3]


def test_schema_of_an_odd_database(odd: Path) -> None:
    schema = read_schema(odd, "odd")
    first, items, view = (table.text() for table in schema.tables)
    assert (
        first.startswith('"Order Lines"(id INTEGER PRIMARY KEY, "the ""note"" text" TEXT')
        and "REFERENCES Items" in first
    )
    assert (items, view) == ("Items(itemName TEXT, price REAL)", "Cheap(itemName TEXT)")
    # SQL can use the names exactly as the schema shows them.
    assert execute(odd, 'SELECT "the ""note"" text" FROM "Order Lines"').rows == (("\ufffdA",),)
    source = open_source("odd", odd)
    assert "Items.itemName = 'it''s'" in source.notes.best("Where is it's?", 3)
    assert schema.known_tables(("`order lines`", "items.price", "none")) == ("Order Lines", "Items")
    assert schema.known_columns(("ITEMNAME", "items.price", "cheap.price")) == (
        "Items.itemName", "Cheap.itemName", "Items.price",
    )  # fmt: skip


@pytest.mark.parametrize("content", [b"", b"no database at all" * 99])
def test_what_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.sqlite").write_bytes(content)
    with pytest.raises(sqlite3.Error):
        read_schema(tmp_path / "x.sqlite", "x")


def test_notes_are_ranked_by_what_they_share_with_the_question(databases: dict[Database, Path]) -> None:
    source = open_source("shop", databases[SHOP], ["Regulars are customers with more than ten orders"])
    assert source.notes.best("How many regulars are there?", 5)[0].startswith("Regulars")
    assert source.notes.best("Which customers live in Lisbon?", 3)[0] == "customers.city = 'Lisbon'"
    assert source.notes.best("How are you?", 5) == []
    assert len(source.notes.best("customers orders products name", 4)) == 4


def test_databases_are_found_in_files_and_folders(tmp_path: Path, odd: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "one.db").write_bytes(b"")
    assert find_databases(tmp_path) == {"odd": odd, "one": tmp_path / "one" / "one.db"}
    assert find_databases(odd) == {"odd": odd}
    with pytest.raises(ConfigError, match="--databases"):
        find_databases(tmp_path / "missing")


def test_notes_by_database(tmp_path: Path) -> None:
    file = tmp_path / "notes.jsonl"
    file.write_text('{"note": "a", "database": "x"}\n\n{"note": "b"}\n')
    assert notes_for(read_notes(file), "x") == ["a", "b"] and notes_for(read_notes(file), "y") == ["b"]
    for bad in ("{", "[]", '{"note": 3}', '{"text": "a"}'):
        file.write_text(f'{{"note": "a"}}\n{bad}\n')
        with pytest.raises(ConfigError, match=r"notes.jsonl:2"):
            read_notes(file)
    with pytest.raises(ConfigError, match="cannot read"):
        read_notes(tmp_path / "missing")
