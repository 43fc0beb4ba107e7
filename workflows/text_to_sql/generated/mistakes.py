"""Deliberate mistakes of a reference model: wrong SQL and damaged JSON."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from agentspec.workflows.text_to_sql.generated.queries import Filter, Query

_OTHER_OPS = {">": ">=", "<": "<=", ">=": ">", "<=": "<", "=": "!=", "!=": "=", "LIKE": "NOT LIKE"}


def wrong_query(query: Query, rng: random.Random) -> str:
    """SQL of the query with one drawn mistake. Its result nearly always differs, or it does not run."""
    ways = [way for way in _WAYS if way(query) != query.sql()]
    return rng.choice(ways)(query)


def _lost_filter(query: Query) -> str:
    return replace(query, where=query.where[:-1]).sql()


def _other_operator(query: Query) -> str:
    where = [
        replace(part, op=_OTHER_OPS[part.op]) if isinstance(part, Filter) and part.op in _OTHER_OPS else part
        for part in query.where
    ]
    return replace(query, where=tuple(where)).sql()


def _other_order(query: Query) -> str:
    if not query.order:
        return query.sql()
    turned = query.order.removesuffix(" DESC") if query.order.endswith(" DESC") else f"{query.order} DESC"
    return replace(query, order=turned).sql()


def _lost_group(query: Query) -> str:
    return replace(query, group="", having="").sql()


def _no_such_column(query: Query) -> str:
    return replace(query, select=(*query.select[:-1], f"{query.table}.description")).sql()


def _column_too_many(query: Query) -> str:
    return replace(query, select=(*query.select, "COUNT(*)")).sql()


_WAYS: tuple[Callable[[Query], str], ...] = (
    _lost_filter,
    _other_operator,
    _other_order,
    _lost_group,
    _no_such_column,
    _column_too_many,
)


def damaged_json(text: str, rng: random.Random) -> str:
    """A damaged JSON object as models write it: cut off, without its braces, or empty."""
    return rng.choice((text[: max(1, len(text) // 2)], text.strip("{}"), "I cannot answer in JSON.", ""))
