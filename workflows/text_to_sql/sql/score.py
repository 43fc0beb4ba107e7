"""Execution accuracy: two queries are equivalent if they return the same rows."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable
from typing import Literal

from agentspec.workflows.text_to_sql.sql.execute import Cell, Execution

Outcome = Literal["correct", "wrong", "truncated", "error"]
OUTCOMES: tuple[Outcome, ...] = ("correct", "wrong", "truncated", "error")
_SIGNIFICANT_DIGITS = 9


def is_ordered(sql: str) -> bool:
    """True if the outermost query sorts its rows; ORDER BY inside parentheses or quotes does not count."""
    text = re.sub(r"'[^']*'", "''", sql)
    nested = re.compile(r"\([^()]*\)")
    while nested.search(text):
        text = nested.sub(" ", text)
    return re.search(r"\border\s+by\b", text, re.IGNORECASE) is not None


def same_result(gold: Execution, got: Execution, *, ordered: bool) -> bool:
    """True if both ran and their rows are equal: as sequences if `ordered`, as multisets otherwise.

    Column names do not count. Floats are equal within nine significant digits, and a whole float equals its integer.
    """
    if not gold.ok or not got.ok or gold.truncated != got.truncated:
        return False
    ours, theirs = ([tuple(map(_normal, row)) for row in result.rows] for result in (gold, got))
    return ours == theirs if ordered else Counter(ours) == Counter(theirs)


def graded(sql: str, gold: Execution, got: Execution, *, truncated: bool) -> tuple[Outcome, str]:
    """The outcome of an execution compared with that of the gold SQL `sql`, and the reason if it is not "correct".

    `truncated` says that an answer of the model was cut. A result that is not right then counts as "truncated".
    """
    if same_result(gold, got, ordered=is_ordered(sql)):
        return "correct", ""
    return "truncated" if truncated else "wrong", got.error or "the rows differ from those of the gold SQL"


def result_key(result: Execution) -> Hashable:
    """A key that is equal for executions with the same multiset of rows, compared as in `same_result`."""
    return result.truncated, frozenset(Counter(tuple(map(_normal, row)) for row in result.rows).items())


def _normal(cell: Cell) -> Cell:
    if isinstance(cell, float) and math.isfinite(cell):
        rounded = float(f"{cell:.{_SIGNIFICANT_DIGITS}g}")
        return int(rounded) if rounded.is_integer() else rounded
    return cell
