"""Seeded questions with gold SQL, split so that held-out SQL, and thus held-out questions, are never trained on."""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentspec.workflows.text_to_sql.generated.databases import Database
from agentspec.workflows.text_to_sql.generated.intents import INTENTS
from agentspec.workflows.text_to_sql.generated.queries import Query
from agentspec.workflows.text_to_sql.generated.wording import Drawer

Split = Literal["train", "heldout"]
HELDOUT_PERCENT = 10


@dataclass(frozen=True)
class Question:
    """One question on one database; `query` renders the gold SQL and its schema links."""

    database: str
    intent: str
    text: str
    query: Query

    @property
    def sql(self) -> str:
        """Gold SQL."""
        return self.query.sql()

    @property
    def split(self) -> Split:
        """The side of the split, determined only by the database and gold SQL."""
        return split_of(self.database, self.sql)


def split_of(database: str, sql: str) -> Split:
    """The side of a (database, canonical SQL) pair. A hash determines it, so it is independent of seed and order."""
    digest = hashlib.sha256(f"{database}\n{sql}".encode()).digest()
    return "heldout" if int.from_bytes(digest[:4], "big") % 100 < HELDOUT_PERCENT else "train"


def draw_questions(databases: dict[Database, Path], *, split: Split, seed: int) -> Iterator[Question]:
    """Yield questions of one side endlessly, from each database in turn.

    Gold SQL may occur again with another wording. A question is dropped if its answer is empty, or if the same wording
    has occurred before on that database.
    """
    names = list(INTENTS)
    weights = [weight for _, weight in INTENTS.values()]
    asked: set[tuple[str, str]] = set()
    rng = random.Random(f"questions/{seed}")
    drawers: list[tuple[sqlite3.Connection, Drawer]] = []
    for database, path in databases.items():
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)
        drawers.append((connection, Drawer(database, connection, rng)))
    try:
        turn = 0
        while True:
            connection, drawer = drawers[turn % len(drawers)]
            name = rng.choices(names, weights)[0]
            drawn = INTENTS[name][0](drawer)
            if drawn is None:
                continue
            # "Which X ...? Give the name" already has its question mark and ends as a statement.
            asks = drawn[0].startswith(("What", "How", "Which")) and "? " not in drawn[0]
            question = Question(drawer.database.name, name, drawn[0] + ("?" if asks else "."), drawn[1])
            key = (question.database, question.text)
            if question.split != split or key in asked:
                continue
            with closing(connection.execute(question.sql)) as cursor:
                row = cursor.fetchone()
            if row is None or row == (None,):
                continue
            asked.add(key)
            turn += 1
            yield question
    finally:
        for connection, _ in drawers:
            connection.close()
