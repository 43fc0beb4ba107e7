"""Random small databases: drawn tables, columns, foreign keys and values."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import date
from itertools import product

from agentspec.evals.research.tiny_sql_staged.words import (
    CAPITALS,
    DATED,
    MEASURES,
    QUALITIES,
    RELATIONS,
    SORTS,
    THINGS,
    VALUES,
    Words,
)
from agentspec.workflows.text_to_sql.generated.databases import Column, Database, Table


def draw_databases(*, seed: str, unseen_words: bool) -> Iterator[Database]:
    """Random databases without end. `unseen_words` chooses between words of training and words kept from it."""
    rng = random.Random(f"domains/{seed}")
    words = Words(rng, unseen=unseen_words)
    number = 0
    while True:
        number += 1
        # The name is part of every prompt; the number keeps names apart where words repeat.
        yield _database(rng, words, f"{words.pick(THINGS)}_{number % 100}")


def _database(rng: random.Random, words: Words, name: str) -> Database:
    size = rng.choice((2, 3, 3, 4))
    things = words.some(THINGS, size)
    tables: list[Table] = []
    for place in range(size):
        parents = _parents(rng, tables, is_last=place == size - 1)
        tables.append(_table(rng, words, things[place], parents, {t.name for t in tables}))
    return Database(name, tuple(tables))


def _parents(rng: random.Random, tables: list[Table], *, is_last: bool) -> list[Table]:
    """The earlier tables that a new one refers to. The last one always refers to some, so no database lacks a join."""
    if not tables:
        return []
    loose = len(tables) == 1 and not is_last and rng.random() < 0.35
    if loose:
        return []
    several = len(tables) > 1 and rng.random() < 0.5
    # The newest table is likely, so that chains of three tables occur.
    newest, others = tables[-1], tables[:-1]
    if several:
        return [rng.choice(others), newest]
    return [newest if rng.random() < 0.7 or not others else rng.choice(others)]


def _table(rng: random.Random, words: Words, thing: str, parents: list[Table], taken: set[str]) -> Table:
    if parents and rng.random() < 0.15:
        # A name of two words, as linking tables often have.
        thing = f"{parents[-1].singular.split()[-1]} {thing}"
    rows = rng.randint(14, 40)
    columns = [Column("id", "key", "id")]
    if len(parents) < 2 and rng.random() < (0.6 if parents else 0.9):
        columns.append(_label(rng, words))
    relations = rng.sample(RELATIONS, len(parents))
    for parent, relation in zip(parents, relations, strict=True):
        name = f"{parent.singular.replace(' ', '_')}_id"
        columns.append(Column(name, "ref", refers=parent.name, relation=relation))
    makers: list[Callable[[random.Random, Words], Column]] = [_category, _number, _date]
    wanted = max(1, rng.choice((3, 4, 4, 5)) - len(columns))
    chosen = rng.sample(makers, min(2, wanted)) + rng.choices(makers, (2, 3, 1), k=max(0, wanted - 2))
    for make in chosen:
        column = make(rng, words)
        if column.name not in {c.name for c in columns} and column.phrase not in {c.phrase for c in columns}:
            columns.append(column)
    plural = f"{thing}s"
    name = plural.replace(" ", "_")
    return Table(name if name not in taken else f"{name}_list", thing, plural, rows, tuple(columns))


def _label(rng: random.Random, words: Words) -> Column:
    name = rng.choice(("name", "name", "title", "code", words.pick(SORTS)))
    pairs = product(words.some(CAPITALS, 7), words.some(CAPITALS, 7))
    return Column(name, "label", name, values=tuple(" ".join(pair) for pair in pairs))


def _category(rng: random.Random, words: Words) -> Column:
    word = words.pick(SORTS)
    pool = CAPITALS if rng.random() < 0.35 else VALUES
    return Column(word, "category", word, values=tuple(words.some(pool, rng.randint(3, 5))))


def _number(rng: random.Random, words: Words) -> Column:
    form = rng.random()
    if form < 0.15:
        word = words.pick(THINGS)
        return Column(f"{word}s", "number", f"{word} count", low=rng.choice((0, 1, 5)), high=rng.choice((40, 90, 300)))
    if form < 0.3:
        word = words.pick([pair.split(":")[0] for pair in DATED])
        name, phrase = (word, f"{word} year") if rng.random() < 0.5 else (f"{word}_year", f"{word} year")
        return Column(name, "number", phrase, low=rng.choice((1920, 1960, 2001)), high=2024)
    word = words.pick(MEASURES)
    phrase = f"{words.pick(QUALITIES)} {word}" if form < 0.45 else word
    low, step = rng.choice((0, 1, 5, 10, 20, 100)), rng.choice((1, 1, 1, 5, 10, 0.5))
    return Column(
        phrase.replace(" ", "_"), "number", phrase, low=low, high=low + step * rng.choice((40, 90, 180)), step=step
    )


def _date(rng: random.Random, words: Words) -> Column:
    done, noun = words.pick(DATED).partition(":")[::2]
    first = rng.choice((2019, 2021, 2022))
    name = f"{done}_on" if rng.random() < 0.6 else f"{noun or done}_date"
    return Column(
        name,
        "date",
        f"{noun or done} date",
        first=date(first, 1, 1),
        last=date(first + 2, 12, 28),
        empty_share=rng.choice((0.0, 0.0, 0.2)),
    )
