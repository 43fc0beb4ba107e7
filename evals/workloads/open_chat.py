"""Requests to the small model whose answers share little. No two are about the same thing, so copying finds little.

Each asks for a query over columns and conditions combined at random from all six databases, without a schema to quote
from. Names and values of the answer appear in the question in other words, in another order or not at all, and differ
from request to request. So the repetition that suffix drafting needs is rare here. A draft model still knows the
grammar of SQL, which name a phrase stands for, and the typical errors of the small model.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from datetime import timedelta

from agentspec.workflows.text_to_sql.agents.prompts import SYSTEM, Message
from agentspec.workflows.text_to_sql.generated.databases import Column, Kind, Table
from agentspec.workflows.text_to_sql.generated.domains import DATABASES
from agentspec.workflows.text_to_sql.generated.questions import HELDOUT_PERCENT
from agentspec.workflows.text_to_sql.generated.wording import listing, quoted

_KINDS: tuple[Kind, ...] = ("label", "category", "number", "date")
_TABLES: tuple[Table, ...] = tuple(table for database in DATABASES for table in database.tables)
_COLUMNS: tuple[Column, ...] = tuple(column for table in _TABLES for column in table.of_kind(*_KINDS))
_VERBS = ("List the", "Show the", "Give me the", "What are the", "Find the", "Tell me the")
_WORDS: dict[str, tuple[str, ...]] = {
    "label": ("whose {p} is {v}", "with {p} {v}", "whose {p} is not {v}", "with {p} other than {v}"),
    "category": ("whose {p} is {v}", "having {p} {v}", "whose {p} is not {v}", "with {p} other than {v}"),
    "number": ("with {p} above {v}", "whose {p} is less than {v}", "with {p} of at least {v}", "whose {p} is {v}"),
    "date": ("with {p} after {v}", "whose {p} is earlier than {v}"),
}


def draw_open_prompts(*, seed: int) -> Iterator[tuple[Message, ...]]:
    """Yields endless requests. None is among those that the small model was trained on, whatever the seed."""
    rng = random.Random(f"open/{seed}")
    while True:
        text = rng.choice((_crowded, _across, _of_tables))(rng)
        if _is_held_out(text):
            yield {"role": "system", "content": SYSTEM["write"]}, {"role": "user", "content": text}


def _is_held_out(text: str) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 100 < HELDOUT_PERCENT


def _crowded(rng: random.Random) -> str:
    """Has more columns and conditions than the model was ever asked for."""
    return f"question: {_question(rng, rng.randint(3, 6), rng.randint(3, 5))}{_sorting(rng)}."


def _across(rng: random.Random) -> str:
    """Asks about one thing, and about the row of another that belongs to it."""
    first, second = rng.sample(_TABLES, 2)
    more = f"the {rng.choice(_COLUMNS).phrase} of the {first.singular} {_condition(rng)} and {_condition(rng)}"
    return f"question: {_question(rng, 2, rng.randint(1, 3))} and {more}, for each {second.singular}."


def _of_tables(rng: random.Random) -> str:
    """Names tables that may have nothing to do with the question."""
    first, second = rng.sample(_TABLES, 2)
    text = f"{_question(rng, rng.randint(2, 5), rng.randint(2, 4))}{_sorting(rng)}."
    return f"question: {text}\nlinks: tables {first.name}, {second.name}"


def _question(rng: random.Random, num_columns: int, num_conditions: int) -> str:
    columns = listing([column.phrase for column in rng.sample(_COLUMNS, num_columns)])
    words = _condition(rng)
    for _ in range(num_conditions - 1):
        words += rng.choice((" and ", " or ", ", ")) + _condition(rng)
    return f"{rng.choice(_VERBS)} {columns} of {rng.choice(_TABLES).plural} {words}"


def _condition(rng: random.Random) -> str:
    column = rng.choice(_COLUMNS)
    return rng.choice(_WORDS[column.kind]).format(p=column.phrase, v=_value(rng, column))


def _sorting(rng: random.Random) -> str:
    return f", sorted by {rng.choice(_COLUMNS).phrase}" if rng.random() < 0.5 else ""


def _value(rng: random.Random, column: Column) -> str:
    """A value that the column may hold, as questions quote it."""
    if column.values:
        return quoted(rng.choice(column.values))
    if column.kind == "date":
        return quoted((column.first + timedelta(rng.randrange((column.last - column.first).days))).isoformat())
    return quoted(rng.randint(round(column.low), round(column.high)))
