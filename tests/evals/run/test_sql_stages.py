from __future__ import annotations

import sqlite3
from pathlib import Path

from agentspec.evals.run.sql_stages import statements_right
from agentspec.workflows.text_to_sql.sql.scorers import Grader


def test_statements_are_graded_by_the_stage_that_wrote_them(tmp_path: Path) -> None:
    path = tmp_path / "shop.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript("CREATE TABLE t (a); INSERT INTO t VALUES (1), (2);")
    database.close()
    written = [
        ("classify", "{}"),
        ("draft", "```sql\nSELECT count(*) FROM t\n```"),
        ("draft", "SELECT max(a) FROM t"),
        ("draft", "I cannot."),
        ("combine", "SELECT a FROM t"),
    ]
    calls = [{"stage": stage, "output": output} for stage, output in written]
    record = {"session": "1", "task": "shop", "gold": "SELECT 2", "calls": calls}
    with Grader("rows", 5.0) as grader:
        found = statements_right([record, {**record, "calls": calls[4:]}], {"shop": path}, grader)
    assert found["draft"] == [True, True, False] and found["combine"] == [False, False] and not found["repair"]
    assert found["any draft"] == [True, False]
