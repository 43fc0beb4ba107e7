"""Which statements are safe to run, and how they are run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest
from every import every

from agentspec.workflows.text_to_sql import Database, draw_questions
from agentspec.workflows.text_to_sql.generated.domains import SHOP
from agentspec.workflows.text_to_sql.sql.execute import execute
from agentspec.workflows.text_to_sql.sql.safety import refusal
from agentspec.workflows.text_to_sql.sql.sandbox import Sandbox


@every(
    "sql",
    [
        "SELECT 1",
        "select name from customers where city = 'x; DROP TABLE y' -- ; done",
        "WITH big AS (SELECT * FROM orders) SELECT COUNT(*) FROM big;",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) SELECT i FROM n",
        "SELECT 1 UNION SELECT 2 EXCEPT SELECT 3 INTERSECT SELECT 4",
        "(SELECT 1) UNION ALL SELECT 2 ORDER BY 1 LIMIT 1",
        "SELECT REPLACE(name, 'a', 'b'), \"total\", [status] FROM orders",
    ],
)
def test_one_query_passes(sql: str) -> None:
    assert refusal(sql) == ""


@every(
    ("sql", "reason"),
    [
        ("", "got none"),
        ("-- nothing", "got none"),
        ("SELECT 1; SELECT 2", "got 2"),
        ("SELECT 1; DELETE FROM customers", "got 2"),
        ("DELETE FROM customers", "DELETE"),
        ("UPDATE customers SET name = ''", "UPDATE"),
        ("INSERT INTO customers SELECT * FROM customers", "INSERT"),
        ("REPLACE INTO customers VALUES (1)", "only SELECT"),
        ("CREATE TABLE a AS SELECT 1", "CREATE"),
        ("DROP TABLE customers", "DROP"),
        ("ALTER TABLE customers ADD x", "ALTER"),
        ("ATTACH 'other.sqlite' AS other", "ATTACH"),
        ("DETACH other", "DETACH"),
        ("PRAGMA user_version = 3", "PRAGMA"),
        ("PRAGMA table_info(customers)", "PRAGMA"),
        ("VACUUM INTO 'copy.sqlite'", "VACUUM"),
        ("BEGIN", "only SELECT"),
        ("EXPLAIN SELECT 1", "only SELECT"),
        ("SHOW TABLES", "SHOW"),
        ("WITH gone AS (DELETE FROM customers RETURNING *) SELECT * FROM gone", "DELETE"),
        ("WITH a AS (SELECT 1) INSERT INTO customers SELECT * FROM a", "INSERT"),
        ("WITH a AS (SELECT 1) DELETE FROM customers", "DELETE"),
        ("SELECT * INTO copy FROM customers", "INTO"),
        ("SELECT load_extension('evil.so')", "load_extension"),
        ("SELECT 1 WHERE LOAD_EXTENSION('evil.so', 'main') IS NULL", "load_extension"),
        ("SELECT writefile('a', 'b')", "writefile"),
        ("SELECT hex(zeroblob(1000000000))", "zeroblob"),
        ("SELECT * FROM pragma_table_info('customers')", "pragma_table_info"),
        ("SELECT name FROM", "not valid"),
        ("There is no table for that.", "not valid"),
        ("SELECT '\0'", "NUL"),
        ("SELECT " + "1 + " * 9_000 + "1", "at most"),
        ("SELECT " + "(" * 5_000 + "1" + ")" * 5_000, "nested too deeply"),
    ],
)
def test_all_else_is_refused_with_its_reason(sql: str, reason: str) -> None:
    found = refusal(sql)
    assert reason in found and "\n" not in found and "\x1b" not in found


def test_no_drawn_gold_is_refused(databases: dict[Database, Path]) -> None:
    for question in islice(draw_questions(databases, split="train", seed=9), 150):
        assert refusal(question.sql) == "", question.sql


def test_statements_stay_out_of_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        refusal("SHOW secret_table")
    assert "secret" not in caplog.text


# One SQLite instruction that takes many seconds, during which SQLite does not check the time.
ENDLESS_CALL = "SELECT instr(hex(zeroblob(450000)), hex(zeroblob(220000)) || '1')"


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(grace_s=0.2) as sandbox:
        yield sandbox


def test_results_are_those_of_the_same_process(sandbox: Sandbox, databases: dict[Database, Path]) -> None:
    paths = {database.name: path for database, path in databases.items()}
    asked = [(paths[q.database], q.sql) for q in islice(draw_questions(databases, split="train", seed=4), 30)]
    shop = databases[SHOP]
    asked += [
        (shop, sql) for sql in ("SELECT", "DROP TABLE orders", "SELECT x'00ff', NULL, 1.5, 'ü'", "SELECT '\ud800'")
    ]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda one: sandbox.execute(*one), asked)) == [execute(*one) for one in asked]


def test_a_call_that_does_not_end_is_killed_and_others_are_not(
    sandbox: Sandbox, databases: dict[Database, Path]
) -> None:
    shop = databases[SHOP]
    with ThreadPoolExecutor(2) as pool:
        endless = pool.submit(sandbox.execute, shop, ENDLESS_CALL, timeout_s=0.1)
        assert all(sandbox.execute(shop, "SELECT 1").rows == ((1,),) for _ in range(50))
        assert endless.result().error == "stopped after 0.1 s"
    assert sandbox.execute(shop, "SELECT 2").rows == ((2,),)


def test_a_process_that_cannot_have_its_memory_ends_alone(databases: dict[Database, Path]) -> None:
    # Python itself does not start with so little memory.
    with Sandbox(memory_bytes=1 << 20) as sandbox:
        assert "ended early" in sandbox.execute(databases[SHOP], "SELECT 1").error


def test_no_process_is_left_behind(databases: dict[Database, Path]) -> None:
    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    before = children()
    with Sandbox(grace_s=0) as sandbox:
        sandbox.execute(databases[SHOP], "SELECT 1")
        sandbox.execute(databases[SHOP], ENDLESS_CALL, timeout_s=0.01)
        sandbox.execute(databases[SHOP], "SELECT 1")
        assert len(children() - before) == 1
    assert children() <= before


def test_a_statement_that_outlives_the_sandbox_leaves_no_process(databases: dict[Database, Path]) -> None:
    with ThreadPoolExecutor(1) as pool:
        with Sandbox(grace_s=0.2) as sandbox:
            late = pool.submit(sandbox.execute, databases[SHOP], ENDLESS_CALL, timeout_s=0.1)
        assert not late.result().ok
    # A process that is started after the end is not kept either.
    assert sandbox.execute(databases[SHOP], "SELECT 1").ok and not sandbox._idle
