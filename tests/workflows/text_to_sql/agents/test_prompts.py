from __future__ import annotations

import json

from every import every

from agentspec.workflows.text_to_sql.agents.prompts import (
    check_answer,
    linked_tables,
    read_sql,
    read_verdict,
    shown,
    write_messages,
)
from agentspec.workflows.text_to_sql.generated.domains import SHOP
from agentspec.workflows.text_to_sql.sql.execute import Execution


def test_the_writer_sees_the_linker_s_part_of_the_schema_only() -> None:
    links = json.dumps({"tables": {"orders": SHOP.table_text("orders")}})
    content = write_messages(SHOP, "How many orders?", links)[1]["content"]
    assert "customer_id = customers.id" in content and "products: id" not in content


@every("links", ["{", "[]", '"orders"', "{}", '{"tables": 3}', '{"tables": ["nowhere"]}'])
def test_unusable_links_give_the_whole_schema(links: str) -> None:
    assert linked_tables(SHOP, links) == frozenset()
    assert "products: id" in write_messages(SHOP, "How many orders?", links)[1]["content"]


@every(
    ("answer", "sql"),
    [
        ("SELECT 1;", "SELECT 1;"),
        (" SELECT 1 ", "SELECT 1"),
        ("```sql\nSELECT 1;\n```", "SELECT 1;"),
        ("SELECT 1; DROP TABLE t;", "SELECT 1;"),
        ("SELECT ';' FROM t; x", "SELECT ';' FROM t;"),
        ("", ""),
    ],
)
def test_read_sql(answer: str, sql: str) -> None:
    assert read_sql(answer) == sql


def test_read_verdict() -> None:
    assert read_verdict(check_answer("How many?", "SELECT 1;", "ok", "fine")).ok
    assert read_verdict("Sure: " + check_answer("How many?", "SELECT 1;", "repair", "no") + " done").reason == "no"
    for unreadable in ("", "ok", "{", '{"reason": "x"}', "[1]", "} {"):
        assert not read_verdict(unreadable).ok


def test_result_is_shown_short() -> None:
    execution = Execution(("name", "mean"), tuple((f"row {i}" + "x" * 100, 1 / 3) for i in range(9)))
    lines = shown(execution).splitlines()
    assert lines[:2] == ["columns: name, mean", "rows: 9"] and len(lines) == 5
    assert lines[2].endswith("| 0.333333") and len(lines[2]) < 60
    assert shown(Execution(error="no such table: x")) == "error: no such table: x"
