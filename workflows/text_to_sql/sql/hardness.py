"""How hard a query is by the rules of Spider's scorer, which count the clauses of the gold query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentspec.workflows.text_to_sql.sql.safety import load_sqlglot

HARDNESS = ("easy", "medium", "hard", "extra")


def hardness(sql: str) -> str:
    """One of HARDNESS, or "" for a query that cannot be parsed.

    As in Spider's scorer, only the outermost SELECT counts, and of a compound query the first one. Raises ConfigError
    if sqlglot is not installed.
    """
    sqlglot, exp = load_sqlglot()
    try:
        query = sqlglot.parse_one(sql, dialect="sqlite")
    except (sqlglot.errors.SqlglotError, RecursionError):
        return ""
    nested = 0
    while isinstance(query, exp.SetOperation):
        nested, query = nested + 1, query.this
    if not isinstance(query, exp.Select):
        return ""
    nodes = [node for clause in _conditions(query) for node in _outer_nodes(clause, exp)]
    nested += sum(isinstance(node, exp.Select | exp.SetOperation) for node in nodes)
    clauses = sum(bool(query.args.get(name)) for name in ("where", "group", "order", "limit"))
    clauses += len(query.args.get("joins") or ()) + sum(isinstance(node, exp.Or | exp.Like) for node in nodes)
    others = _others(query, nodes, exp)
    if nested:
        return "hard" if (nested, others) == (1, 0) and clauses <= 1 else "extra"
    if clauses <= 1 and others == 0:
        return "easy"
    if (clauses <= 1 and others <= 2) or (clauses <= 2 and others <= 1):
        return "medium"
    # The scorer calls two clauses with exactly two others "extra", although more others are "hard".
    return "hard" if (clauses <= 2 and others > 2) or (clauses == 3 and others <= 2) else "extra"


def _others(query: Any, nodes: list[Any], exp: Any) -> int:
    """Whether there are several aggregates, columns in the result, conditions in WHERE, and columns in GROUP BY."""
    where, group, order = (query.args.get(name) for name in ("where", "group", "order"))
    counted = [*query.expressions, *(order.expressions if order else ())]
    # The scorer takes the NOT of a condition for an aggregate.
    aggregates = sum(len(list(column.find_all(exp.AggFunc))) for column in counted)
    aggregates += sum(isinstance(node, exp.Not) for node in nodes)
    conditions = sum(isinstance(node, exp.And | exp.Or) for node in _outer_nodes(where, exp)) + 1 if where else 0
    several = (aggregates, len(query.expressions), conditions, len(group.expressions) if group else 0)
    return sum(number > 1 for number in several)


def _conditions(query: Any) -> Iterator[Any]:
    """The conditions of ON, WHERE and HAVING."""
    for join in query.args.get("joins") or ():
        if on := join.args.get("on"):
            yield on
    for name in ("where", "having"):
        if clause := query.args.get(name):
            yield clause


def _outer_nodes(clause: Any, exp: Any) -> Iterator[Any]:
    """The nodes of a clause, without those of nested queries."""
    yield from clause.walk(prune=lambda node: isinstance(node, exp.Select | exp.SetOperation))
