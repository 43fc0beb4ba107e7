from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentspec.workflows.text_to_sql.sql.scorers import Grader, ScorerName, spider_query


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scored") / "x.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            "CREATE TABLE t (a INTEGER, b REAL, c TEXT); INSERT INTO t VALUES (1, 1.0, 'x'), (2, 0.3, 'y'), (2, 0.3, 'y');"
        )
    return path


@pytest.fixture(scope="module")
def graders() -> Iterator[dict[ScorerName, Grader]]:
    with Grader("rows", 2.0) as rows, Grader("bird", 2.0) as bird, Grader("spider", 2.0) as spider:
        yield {"rows": rows, "bird": bird, "spider": spider}


@pytest.mark.parametrize(
    ("gold", "sql", "right"),
    [
        # gold query, answer, the scorers that take it for correct
        ("SELECT a FROM t", "SELECT a FROM t ORDER BY a DESC", "rows bird spider"),
        ("SELECT a FROM t ORDER BY a", "SELECT a FROM t ORDER BY a DESC", "bird"),
        ("SELECT DISTINCT a FROM t", "SELECT a FROM t", "bird spider"),
        ("SELECT a FROM t", "SELECT a FROM t GROUP BY a", "bird"),
        ("SELECT count(DISTINCT a) FROM t", "SELECT count(a) FROM t", "spider"),
        ("SELECT a, c FROM t", "SELECT c, a FROM t", "spider"),
        ("SELECT a, c FROM t ORDER BY b", "SELECT c, a FROM t ORDER BY b", "spider"),
        # A nested ORDER BY makes Spider compare lists; two spaces within it do not.
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", "SELECT a FROM t ORDER BY a DESC", "rows bird"),
        ("SELECT a FROM t ORDER  BY a", "SELECT a FROM t ORDER BY a DESC", "bird spider"),
        # Whole floats equal their integers everywhere; only rows rounds.
        ("SELECT a FROM t WHERE a = 1", "SELECT b FROM t WHERE a = 1", "rows bird spider"),
        ("SELECT 0.3", "SELECT 0.1 + 0.2", "rows"),
        ("SELECT '1'", "SELECT 1", ""),
        ("SELECT a FROM t WHERE a > 9", "SELECT a, c FROM t WHERE a > 9", "rows bird spider"),
        ("SELECT a FROM t", "SELECT a, a FROM t", ""),
        ("SELECT count(*) FROM t WHERE a >= 2", "SELECT count(*) FROM t WHERE a > = 2", "spider"),
        ("SELECT 2020 - a FROM t", "SELECT year( CURDATE() ) - a FROM t", "spider"),
        ("SELECT a FROM t", "SELECT nothing FROM t", ""),
        ("SELECT a FROM t", "DELETE FROM t", ""),
        ("SELECT a FROM t", "", ""),
    ],
)
def test_what_each_scorer_takes_for_correct(
    database: Path, graders: dict[ScorerName, Grader], gold: str, sql: str, right: str
) -> None:
    outcomes = {name: grader.grade(database, gold, sql)[0] for name, grader in graders.items()}
    assert outcomes == {name: "correct" if name in right.split() else "wrong" for name in graders}


def test_gold_that_fails_or_is_cut_is_not_graded(database: Path, graders: dict[ScorerName, Grader]) -> None:
    for grader in graders.values():
        assert grader.grade(database, "SELECT no FROM t", "SELECT 1") == (
            "ungraded", "the gold SQL fails: no such column: no",
        )  # fmt: skip
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20) SELECT i FROM n"
    for name in graders:
        with Grader(name, 2.0, max_rows=19) as grader:
            outcome, reason = grader.grade(database, many, many)
            assert outcome == "ungraded" and "more than 19 rows" in reason
            # An answer beyond the limit is wrong, even where repetitions do not count.
            assert grader.grade(database, "SELECT 1", many)[0] == "wrong"
        with Grader(name, 2.0, max_rows=20) as grader:
            assert grader.grade(database, many, many)[0] == "correct"
        with Grader(name, 2.0, max_bytes=50) as grader:
            assert grader.grade(database, many, many) == ("ungraded", "the gold SQL fails: stopped at 50 bytes of rows")


def test_scoring_reads_more_rows_than_the_agents_do(database: Path, graders: dict[ScorerName, Grader]) -> None:
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT i FROM n"
    for grader in graders.values():
        assert grader.grade(database, many, many)[0] == "correct"
        assert grader.grade(database, many, many.replace("SELECT i FROM", "SELECT i - (i = 15000) FROM"))[0] == "wrong"


def test_answers_that_were_cut_are_told_apart(database: Path, graders: dict[ScorerName, Grader]) -> None:
    assert graders["bird"].grade(database, "SELECT 1", "SELECT 2", truncated=True)[0] == "truncated"
    assert graders["bird"].grade(database, "SELECT 1", "SELECT 1", truncated=True)[0] == "correct"


def test_distinct_stays_within_quotes_names_and_comments() -> None:
    kept = """SELECT 'it''s distinct', "distinct", `distinct`, [a distinct], distinct_a -- distinct\n/* distinct */ FROM t"""
    assert spider_query(kept) == kept
    assert spider_query("select DISTINCT a, count(Distinct b) from t") == "select  a, count( b) from t"
    assert spider_query("SELECT a < = 3, a ! = YEAR (CURDATE())") == "SELECT a <= 3, a != 2020"
