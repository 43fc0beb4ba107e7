from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
from programs import output_of

from agentspec.workflows.text_to_sql import Database
from agentspec.workflows.text_to_sql.generated.domains import SHOP
from agentspec.workflows.text_to_sql.sql.execute import execute


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
        ("SELECT zeroblob(100000000)", "too big"),
        ("SELECT hex(zeroblob(900000))", "too big"),
        ("SELECT group_concat(hex(zeroblob(40000))) FROM orders", "too big"),
        ("SELECT load_extension('evil.so')", ""),
        ("SELECT name FROM customers WHERE name LIKE hex(zeroblob(2000))", ""),
    ],
)
def test_errors_are_returned_and_values_bounded(shop: Path, sql: str, error: str) -> None:
    execution = execute(shop, sql)
    assert not execution.ok and error in execution.error


@pytest.mark.parametrize(
    "sql", ["DELETE FROM customers", "DROP TABLE customers", "PRAGMA user_version = 3", "ATTACH '{other}' AS other"]
)
def test_nothing_but_reading_is_allowed(shop: Path, tmp_path: Path, sql: str) -> None:
    before = shop.read_bytes()
    assert not execute(shop, sql.format(other=tmp_path / "other.sqlite")).ok
    assert shop.read_bytes() == before and not list(tmp_path.iterdir())


ENDLESS = {
    "recursion": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n",
    "rows": "SELECT COUNT(*) FROM orders a, orders b, orders c, orders d",
    "sorted": "SELECT a.id FROM orders a, orders b, orders c, orders d ORDER BY random()",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_is_stopped(shop: Path, name: str) -> None:
    assert execute(shop, ENDLESS[name], timeout_s=0.05).error == "stopped after 0.05 s"


def test_rows_of_a_cross_join_are_cut(shop: Path) -> None:
    execution = execute(shop, "SELECT 1 FROM orders a, orders b, orders c", max_rows=100)
    assert execution.truncated and len(execution.rows) == 100


def test_rows_are_bounded_by_their_bytes(shop: Path) -> None:
    assert "bytes" in execute(shop, "SELECT hex(zeroblob(50000)) FROM orders", max_bytes=1_000_000).error


def test_a_missing_file_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    assert not execute(tmp_path / "none?mode=rwc", "SELECT 1").ok
    assert not list(tmp_path.iterdir())


def test_memory_of_sqlite_is_bounded(shop: Path) -> None:
    # The limit holds for the whole process and is never raised again, so a separate process gets a low limit.
    lowered = (
        "import runpy, sys; from pathlib import Path; module = runpy.run_path(sys.argv[1]); execute = module['execute'];"
        "execute.__globals__['_HEAP_BYTES'] = 3_000_000; print(execute(Path(sys.argv[2]), sys.argv[3]).error)"
    )
    large = ", ".join(f"max(a.name || hex(zeroblob({size}000)) || b.name)" for size in range(480, 490))
    command = [sys.executable, "-I", "-S", "-c", lowered, inspect.getfile(execute), str(shop)]
    told = output_of(*command, f"SELECT {large} FROM customers a, customers b")
    assert told == "stopped at 3e+06 bytes of memory\n"
