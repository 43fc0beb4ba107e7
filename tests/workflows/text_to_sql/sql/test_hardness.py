from __future__ import annotations

import pytest

from agentspec.workflows.text_to_sql.sql.hardness import hardness


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT count(*) FROM t", "easy"),
        ("SELECT a FROM t WHERE b > 1", "easy"),
        ("SELECT a, b, c FROM t", "medium"),
        ("SELECT avg(a), max(b) FROM t WHERE c = 'x'", "medium"),
        ("SELECT a FROM t GROUP BY a ORDER BY count(*)", "medium"),
        ("SELECT t.a FROM t JOIN u ON t.i = u.i WHERE u.b = 1", "medium"),
        ("SELECT a FROM t GROUP BY a ORDER BY count(*) DESC LIMIT 1", "hard"),
        ("SELECT a FROM t WHERE i NOT IN (SELECT i FROM u WHERE x > 1 OR y LIKE 'z')", "hard"),
        ("SELECT a FROM t WHERE b = 1 INTERSECT SELECT a FROM t WHERE b = 2 ORDER BY a LIMIT 3", "hard"),
        ("SELECT a, count(*), avg(b) FROM t JOIN u ON t.i = u.i WHERE c = 1 AND d = 2", "hard"),
        ("SELECT a, count(*), avg(b) FROM t JOIN u ON t.i = u.i WHERE c = 1", "extra"),
        ("SELECT a, count(*) FROM t WHERE i NOT IN (SELECT i FROM u)", "extra"),
        ("SELECT t.a FROM t JOIN u ON t.i = u.i GROUP BY t.a ORDER BY count(*) DESC LIMIT 1", "extra"),
        ("SELECT a FROM", ""),
        ("DELETE FROM t", ""),
    ],
)
def test_clauses_of_the_outermost_query_decide(sql: str, expected: str) -> None:
    assert hardness(sql) == expected
