"""Training calls: the staged agents run on random databases with a teacher, which knows the gold answer of every call.

The agents get mistakes from the teacher, as they would from any model, so that combine, check and repair have work. What
is learnt is the right answer to every call.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from agentspec.evals.research.tiny_sql_staged.domains import draw_databases
from agentspec.workflows.text_to_sql.agents.client import GREEDY, Completion, Sampling
from agentspec.workflows.text_to_sql.agents.prompts import Message
from agentspec.workflows.text_to_sql.agents.stages import INSTRUCTIONS
from agentspec.workflows.text_to_sql.agents.transcript import Transcript
from agentspec.workflows.text_to_sql.agents.workflow import WorkflowConfig, solve
from agentspec.workflows.text_to_sql.generated.databases import Database, create
from agentspec.workflows.text_to_sql.generated.questions import Question, draw_questions
from agentspec.workflows.text_to_sql.generated.reference import ReferenceConfig, ReferenceModel
from agentspec.workflows.text_to_sql.sql.execute import execute
from agentspec.workflows.text_to_sql.sql.sources import open_source

# Fewer notes than by default, because they are most of a prompt on small databases.
WORKFLOW = WorkflowConfig(notes=4, max_tokens=192)
QUESTIONS_A_DATABASE = 1


@dataclass(frozen=True, slots=True)
class Taught:
    """One call with its right answer."""

    stage: str
    messages: tuple[Message, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class Lesson:
    """The calls on one database. They begin with the same system message."""

    database: str
    calls: tuple[Taught, ...]


class Teacher:
    """Keeps the right answer of every call, and gives the agents one that may be wrong."""

    def __init__(self, question: Question, database: Database, path: Path, rng: random.Random) -> None:
        paths = {database.name: path}
        self._right = ReferenceModel([question], paths, ReferenceConfig(wrong_sql=0, damaged_json=0))
        # Drafts seldom disagree at a small share of mistakes, and combine would hardly be seen.
        share = rng.choice((0.2, 0.4, 0.7))
        seed = rng.randrange(1 << 30)
        self._wrong = ReferenceModel([question], paths, ReferenceConfig(wrong_sql=share, damaged_json=0, seed=seed))
        self._database = database
        self._rng = rng
        self._misread = share / 3
        self.calls: list[Taught] = []

    async def complete(
        self, messages: Sequence[Message], max_tokens: int, *, sampling: Sampling = GREEDY
    ) -> Completion:
        """What the agents get."""
        user = messages[1]["content"]
        stage = next(name for name, text in INSTRUCTIONS.items() if user.startswith(text))
        right, told = self._right.answer(messages), self._wrong.answer(messages)
        self.calls.append(Taught(stage, tuple(messages), right))
        if stage == "extract":
            told = self._forgetful(told)
        elif stage in ("draft", "combine", "repair") and self._rng.random() < self._misread:
            told = misread(told, self._database, self._rng)
        return Completion(told)

    def _forgetful(self, features: str) -> str:
        """Features without one of their columns, now and then: later stages must read the question itself."""
        found = json.loads(features)
        if len(found["columns"]) > 1 and self._rng.random() < 0.15:
            del found["columns"][self._rng.randrange(len(found["columns"]))]
        return json.dumps(found, ensure_ascii=False)


def misread(sql: str, database: Database, rng: random.Random) -> str:
    """The statement with another column of the same table in place of one of its columns."""
    swaps = [
        (f"{column.name}", other.name)
        for table in database.tables
        for column in table.columns
        for other in table.columns
        if other is not column and column.kind != "key" and f"{column.name}" in sql
    ]
    if not swaps:
        return sql
    old, new = rng.choice(swaps)
    return sql.replace(old, new)


def draw_lessons(folder: Path, *, seed: str, unseen_words: bool = False) -> Iterator[Lesson]:
    """Lessons without end, each on a new random database. `folder` holds the database of the moment."""
    rng = random.Random(f"lessons/{seed}")
    path = folder / "database.sqlite"
    for number, database in enumerate(draw_databases(seed=seed, unseen_words=unseen_words)):
        create(database, path, seed=number)
        questions = draw_questions({database: path}, split="train", seed=rng.randrange(1 << 30))
        asked = list(islice(questions, QUESTIONS_A_DATABASE))
        calls: list[Taught] = []
        source = open_source(database.name, path)
        for question in asked:
            teacher = Teacher(question, database, path, rng)
            asyncio.run(solve(teacher, question.text, source, WORKFLOW, Transcript(), execute))
            calls += teacher.calls
        yield Lesson(database.name, tuple(calls))
