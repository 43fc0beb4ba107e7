from __future__ import annotations

from pathlib import Path

import pytest

from agentspec.workflows.text_to_sql import Database
from agentspec.workflows.text_to_sql.domains import SHOP
from agentspec.workflows.text_to_sql.execute import execute


@pytest.fixture
def shop(databases: dict[Database, Path]) -> Path:
    return databases[SHOP]


def test_rows_and_columns(shop: Path) -> None:
    execution = execute(shop, "SELECT id, name FROM customers WHERE id <= 2")
    assert execution.columns == ("id", "name") and len(execution.rows) == 2 and not execution.truncated


def test_row_cap(shop: Path) -> None:
    execution = execute(shop, "SELECT id FROM customers", max_rows=5)
    assert len(execution.rows) == 5 and execution.truncated


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT town FROM customers", "no such column: town"),
        ("SELECT name FROM", "incomplete input"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("", "no columns"),
        ("SELECT '\x00", ""),
    ],
)
def test_errors_are_returned(shop: Path, sql: str, error: str) -> None:
    execution = execute(shop, sql)
    assert not execution.ok and error in execution.error


@pytest.mark.parametrize(
    "sql", ["DELETE FROM customers", "DROP TABLE customers", "PRAGMA user_version = 3", "ATTACH '{other}' AS other"]
)
def test_nothing_but_reading_is_allowed(shop: Path, tmp_path: Path, sql: str) -> None:
    before = shop.read_bytes()
    assert not execute(shop, sql.format(other=tmp_path / "other.sqlite")).ok
    assert shop.read_bytes() == before and not list(tmp_path.iterdir())


def test_endless_query_is_stopped(shop: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    assert execute(shop, endless, timeout_s=0.05).error == "stopped after 0.05 s"


def test_large_values_are_refused(shop: Path) -> None:
    assert "too big" in execute(shop, "SELECT zeroblob(100000000)").error
