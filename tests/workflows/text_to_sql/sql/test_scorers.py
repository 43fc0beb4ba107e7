"""How answers are scored, and how hard questions are."""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import permutations
from pathlib import Path

import pytest
from every import every

from agentspec.workflows.text_to_sql.sql.hardness import hardness
from agentspec.workflows.text_to_sql.sql.permutation import Row, same_rows
from agentspec.workflows.text_to_sql.sql.score import is_ordered
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
        ("SELECT a FROM t", "SELECT a AS other FROM t", "rows bird spider"),
        ("SELECT 3", "SELECT 3.0001", ""),
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


@every(
    ("sql", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a;", True),
        ("select a from t order  by a", True),
        ("SELECT a FROM t WHERE b IN (SELECT b FROM u ORDER BY (c) LIMIT 1)", False),
        ("SELECT a FROM t WHERE b = 'ORDER BY x'", False),
        ("SELECT a FROM t GROUP BY a", False),
    ],
)
def test_is_ordered(sql: str, ordered: bool) -> None:
    assert is_ordered(sql) is ordered


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


def by_trying_all(gold: list[Row], got: list[Row], ordered: bool) -> bool:
    if not gold and not got:
        return True
    if len(gold) != len(got) or len(gold[0]) != len(got[0]):
        return False
    for order in permutations(range(len(gold[0]))):
        turned = [tuple(row[place] for place in order) for row in got]
        if turned == gold if ordered else Counter(turned) == Counter(gold):
            return True
    return False


def turned(rows: list[Row], rng: random.Random, *, keep_order: bool) -> list[Row]:
    order = rng.sample(range(len(rows[0])), len(rows[0]))
    rows = [tuple(row[place] for place in order) for row in rows]
    return rows if keep_order else rng.sample(rows, len(rows))


@pytest.mark.parametrize("ordered", [False, True])
def test_the_search_finds_what_trying_all_permutations_finds(ordered: bool) -> None:
    rng = random.Random(1)
    met: Counter[bool] = Counter()
    for _ in range(1500):
        columns, rows = rng.randint(1, 4), rng.randint(0, 5)
        cells = rng.choice(([0, 1], [0, 1.0, 1, "1", None], ["a", b"a", 2]))
        gold: list[Row] = [tuple(rng.choice(cells) for _ in range(columns)) for _ in range(rows)]
        got = turned(gold, rng, keep_order=ordered) if gold else []
        if got and rng.random() < 0.6:
            # Cells of one column change places, which simple counts do not see.
            place, first, second = rng.randrange(columns), rng.randrange(rows), rng.randrange(rows)
            changed = [list(row) for row in got]
            changed[first][place], changed[second][place] = changed[second][place], changed[first][place]
            got = [tuple(row) for row in changed]
        expected = by_trying_all(gold, got, ordered)
        assert same_rows(gold, got, ordered=ordered) is expected, (gold, got)
        met[expected] += 1
    assert min(met.values()) > 100


def test_numbers_of_rows_and_columns_count() -> None:
    assert same_rows([], [], ordered=False)
    assert not same_rows([(1,)], [(1,), (1,)], ordered=False)
    assert not same_rows([(1, 1)], [(1,)], ordered=False)


def test_many_columns_take_no_factorial_time() -> None:
    rng = random.Random(2)
    began = time.monotonic()
    for columns, rows in ((12, 50), (20, 300), (30, 1000)):
        gold: list[Row] = [tuple(rng.randint(0, 1) for _ in range(columns)) for _ in range(rows)]
        assert same_rows(gold, turned(gold, rng, keep_order=False), ordered=False)
        # Two rows trade two cells, so that each row and each column still has the same number of ones.
        changed = [list(row) for row in gold]
        first, second, one, two = next(
            (first, second, one, two)
            for first in range(rows) for second in range(first) for one in range(columns) for two in range(one)
            if gold[first][one] == gold[second][two] == 1 and gold[first][two] == gold[second][one] == 0
        )  # fmt: skip
        changed[first][one], changed[first][two], changed[second][one], changed[second][two] = 0, 1, 1, 0
        near = turned([tuple(row) for row in changed], rng, keep_order=False)
        assert not same_rows(gold, near, ordered=False)
    # Columns that are all alike: any assignment is right, and a table of the wrong rows is refused at once.
    square: list[Row] = [tuple(int(row == column) for column in range(25)) for row in range(25)]
    assert same_rows(square, turned(square, rng, keep_order=False), ordered=False)
    assert time.monotonic() - began < 10
