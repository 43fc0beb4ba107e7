"""Execution accuracy by the rules of BIRD, of Spider, or of this project.

rows     rows are equal as a multiset, or as a list if the gold query sorts them; see `score.same_result`
bird     the sets of rows are equal: neither order nor repetition counts
spider   rows are equal as a multiset, or as a list if the gold query says ORDER BY anywhere; columns may be permuted;
         DISTINCT is taken out of both queries before they run

Scoring runs both queries again, with limits on time and rows above those of the agents. A gold result beyond the limits
leaves a question ungraded, and so does gold SQL that fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from agentspec.workflows.text_to_sql.sql.execute import Execution
from agentspec.workflows.text_to_sql.sql.permutation import same_rows
from agentspec.workflows.text_to_sql.sql.sandbox import Sandbox
from agentspec.workflows.text_to_sql.sql.score import Outcome, is_ordered, same_result

MAX_ROWS = 1_000_000
"""Maximum number of rows of a result in scoring."""

MAX_BYTES = 100_000_000
"""Maximum number of bytes of a result in scoring."""

# Python objects and their copy on the way to this process take several times the bytes of the cells.
_MEMORY_BYTES = 3 << 30
_QUOTED_OR_DISTINCT = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|\b(?P<distinct>distinct)\b""",
    re.IGNORECASE | re.DOTALL,
)
_CURRENT_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)

ScorerName = Literal["rows", "bird", "spider"]


@dataclass(frozen=True, slots=True)
class Scorer:
    """The rules of a set.

    Args:
        prepared: Rewrites a query before it runs. It is applied to the gold query and to the answer.
        is_equal: Compares the prepared gold query's result with the answer's. Both ran, and neither was cut.
        timeout_s: Maximum number of seconds of a statement; None for the time that the agents' statements have.
    """

    prepared: Callable[[str], str]
    is_equal: Callable[[str, Execution, Execution], bool]
    timeout_s: float | None


def spider_query(sql: str) -> str:
    """The query as Spider's scorer runs it: joined operators, no DISTINCT outside quotes, and 2020 as current year."""
    for apart, joined in (("> =", ">="), ("< =", "<="), ("! =", "!=")):
        sql = sql.replace(apart, joined)
    without = _QUOTED_OR_DISTINCT.sub(lambda found: "" if found["distinct"] else found[0], sql)
    return _CURRENT_YEAR.sub("2020", without)


def same_set(_gold_sql: str, gold: Execution, got: Execution) -> bool:
    """BIRD's rule: the rows are equal as sets, with cells compared as Python compares them."""
    return set(gold.rows) == set(got.rows)


SCORERS: dict[ScorerName, Scorer] = {
    "rows": Scorer(lambda sql: sql, lambda sql, gold, got: same_result(gold, got, ordered=is_ordered(sql)), None),
    "bird": Scorer(lambda sql: sql, same_set, 30.0),
    "spider": Scorer(
        spider_query,
        # The rule looks at the text alone, so a nested ORDER BY counts, and two spaces between the words do not.
        lambda sql, gold, got: same_rows(gold.rows, got.rows, ordered="order by" in sql.lower()),
        60.0,
    ),
}


class Grader:
    """Grades answers in a sandbox of its own. It may be used by several threads. `sql_timeout_s`: maximum number of
    seconds of a statement if the rules have no limit of their own."""

    def __init__(
        self, name: ScorerName, sql_timeout_s: float, *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._scorer = SCORERS[name]
        self._timeout_s = self._scorer.timeout_s or sql_timeout_s
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._sandbox = Sandbox(memory_bytes=_MEMORY_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._sandbox.__exit__(*exc_info)

    def grade(
        self, path: Path, gold_sql: str, sql: str, *, truncated: bool = False
    ) -> tuple[Outcome | Literal["ungraded"], str]:
        """The outcome of an answer, and the reason if it is not "correct". `sql`: the answer; "" if there is none.
        `truncated`: an answer of the model was cut. An answer that is not right then counts as "truncated"."""
        gold_sql = self._scorer.prepared(gold_sql)
        gold = self._run(path, gold_sql)
        if not gold.ok:
            return "ungraded", f"the gold SQL fails: {gold.error}"
        if gold.truncated:
            return "ungraded", f"the gold SQL returns more than {self._max_rows} rows, the most that scoring reads"
        got = self._run(path, self._scorer.prepared(sql)) if sql else Execution(error="there is no statement")
        if got.ok and not got.truncated and self._scorer.is_equal(gold_sql, gold, got):
            return "correct", ""
        reason = got.error or "the rows differ from those of the gold SQL"
        if got.truncated:
            reason = f"the statement returns more than {self._max_rows} rows, the most that scoring reads"
        return "truncated" if truncated else "wrong", reason

    def _run(self, path: Path, sql: str) -> Execution:
        return self._sandbox.execute(
            path, sql, timeout_s=self._timeout_s, max_rows=self._max_rows, max_bytes=self._max_bytes
        )
