from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path

import pytest
from every import every

from agentspec.workflows.text_to_sql import Database, draw_questions
from agentspec.workflows.text_to_sql.sql.safety import refusal


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
