"""Generated databases and questions."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from every import every

from agentspec.workflows.text_to_sql import DATABASES, Database, Question, draw_questions
from agentspec.workflows.text_to_sql.generated.databases import create, rows_of
from agentspec.workflows.text_to_sql.generated.domains import SHOP
from agentspec.workflows.text_to_sql.generated.intents import INTENTS
from agentspec.workflows.text_to_sql.generated.queries import Filter, Membership, Query
from agentspec.workflows.text_to_sql.generated.wording import Drawer
from agentspec.workflows.text_to_sql.sql.execute import execute


@pytest.fixture(scope="module")
def train(databases: dict[Database, Path]) -> list[Question]:
    return list(islice(draw_questions(databases, split="train", seed=0), 4000))


@pytest.fixture(scope="module")
def heldout(databases: dict[Database, Path]) -> list[Question]:
    return list(islice(draw_questions(databases, split="heldout", seed=0), 600))


def test_same_seed_same_questions(databases: dict[Database, Path], train: list[Question]) -> None:
    assert list(islice(draw_questions(databases, split="train", seed=0), 50)) == train[:50]
    assert list(islice(draw_questions(databases, split="train", seed=1), 50)) != train[:50]


def test_no_heldout_sql_or_question_is_in_training(train: list[Question], heldout: list[Question]) -> None:
    assert not {(q.database, q.sql) for q in train} & {(q.database, q.sql) for q in heldout}
    assert not {(q.database, q.text) for q in train} & {(q.database, q.text) for q in heldout}


def test_words_have_one_meaning(train: list[Question], heldout: list[Question]) -> None:
    meaning: dict[tuple[str, str], str] = {}
    for question in [*train, *heldout]:
        assert meaning.setdefault((question.database, question.text), question.sql) == question.sql


def test_gold_sql_returns_something(databases: dict[Database, Path], heldout: list[Question]) -> None:
    paths = {database.name: path for database, path in databases.items()}
    for question in heldout:
        execution = execute(paths[question.database], question.sql)
        assert execution.ok and execution.rows, question


def test_every_database_and_intent_is_asked(heldout: list[Question]) -> None:
    assert Counter(q.database for q in heldout) == {database.name: 100 for database in DATABASES}
    assert {q.intent for q in heldout} == set(INTENTS)


@pytest.mark.parametrize("intent", INTENTS)
def test_intent_draws_runnable_sql_and_known_links(intent: str, databases: dict[Database, Path]) -> None:
    for database, path in databases.items():
        known = {f"{table.name}.{column.name}" for table in database.tables for column in table.columns}
        with closing(sqlite3.connect(path)) as connection:
            drawer = Drawer(database, connection, random.Random(7))
            drawn = [asked for asked in (INTENTS[intent][0](drawer) for _ in range(20)) if asked is not None]
            assert drawn
            for words, query in drawn:
                connection.execute(query.sql()).fetchall()
                assert set(query.links().columns) <= known, words
                assert {column.split(".")[0] for column in query.links().columns} <= set(query.links().tables)


def test_no_bridge_is_drawn_without_a_linking_table(databases: dict[Database, Path], tmp_path: Path) -> None:
    shop = next(database for database in databases if database.name == "shop")
    small = Database("small", (shop.table("customers"), shop.table("orders")))
    create(small, tmp_path / "small.sqlite")
    with closing(sqlite3.connect(tmp_path / "small.sqlite")) as connection:
        drawer = Drawer(small, connection, random.Random(7))
        assert all(INTENTS["bridge"][0](drawer) is None for _ in range(5))


def test_single_table_sql_is_unqualified() -> None:
    query = Query("orders", ("orders.total",), where=(Filter("orders.status", "=", "'shipped'"),), order="orders.total")
    assert query.sql() == "SELECT total FROM orders WHERE status = 'shipped' ORDER BY total;"
    assert query.links().columns == ("orders.total", "orders.status")


def test_nested_query_is_linked() -> None:
    inside = Membership("customers.id", "orders.customer_id", True, (Filter("orders.total", ">", "100"),))
    query = Query("customers", ("customers.name",), where=(inside,))
    assert query.sql() == (
        "SELECT name FROM customers WHERE id NOT IN (SELECT customer_id FROM orders WHERE total > 100);"
    )
    links = query.links()
    assert links.tables == ("customers", "orders")
    assert links.joins == ("customers.id = orders.customer_id",)
    assert links.filters == ("orders.total > 100",)


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
