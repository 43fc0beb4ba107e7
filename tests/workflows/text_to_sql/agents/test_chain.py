"""The chain of agents: what it asks, what it repairs, and how its answers are graded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
from every import every

from agentspec.workflows.text_to_sql import (
    Answer,
    ChainConfig,
    Completion,
    Database,
    Message,
    Question,
    answer_questions,
    draw_questions,
)
from agentspec.workflows.text_to_sql.agents.prompts import SYSTEM, check_answer
from agentspec.workflows.text_to_sql.generated.domains import DATABASES

DOUBT = check_answer("?", "", "repair", "hm")
FAILS = Completion(error="InternalServerError")


class Gold:
    """A model that gives the gold answers, except for the stages in `changed`."""

    def __init__(self, questions: Sequence[Question], finish: str, changed: dict[str, str | Completion]) -> None:
        self.seen: list[tuple[str, str]] = []
        self._questions, self._finish, self._changed = questions, finish, changed

    async def complete(self, messages: Sequence[Message], max_tokens: int) -> Completion:
        system, user = (message["content"] for message in messages)
        stage = next(name for name, text in SYSTEM.items() if text == system)
        self.seen.append((stage, user))
        said = self._changed.get(stage) or self._gold(stage, user)
        return said if isinstance(said, Completion) else Completion(said, finish_reason=self._finish)

    def _gold(self, stage: str, user: str) -> str:
        question = next(q for q in self._questions if q.text in user)
        if stage == "link":
            database = next(database for database in DATABASES if database.name == question.database)
            tables = {name: database.table_text(name) for name in question.query.links().tables}
            return json.dumps({"question": question.text, "tables": tables})
        if stage == "check":
            assert "rows: " in user or "error: " in user
            return check_answer(question.text, question.sql, "ok", "fine")
        return question.sql


@pytest.fixture(scope="module")
def questions(databases: dict[Database, Path]) -> list[Question]:
    return list(islice(draw_questions(databases, split="heldout", seed=0), 8))


REPAIRS = ["repair", "check"]


@every(
    ("changed", "finish", "outcome", "detail", "stages"),
    [
        ({}, "stop", "correct", "", []),
        ({}, "length", "correct", "", []),
        # Unreadable links and checks do not stop the chain.
        ({"link": "no JSON", "check": "{"}, "stop", "correct", "", 2 * REPAIRS),
        # SQL that fails is repaired, whatever the checker says.
        ({"write": "SELECT town FROM nowhere;"}, "stop", "correct", "", REPAIRS),
        # A repair that fails does not replace SQL that runs.
        ({"check": DOUBT, "repair": "SELECT"}, "stop", "correct", "", 2 * REPAIRS),
        ({"write": "SELECT 'x';"}, "stop", "wrong", "rows differ", []),
        ({"write": "SELECT", "repair": "SELEC"}, "stop", "wrong", "syntax error", 2 * REPAIRS),
        ({"write": "SELECT", "repair": "SELECT 'x"}, "length", "truncated", "", 2 * REPAIRS),
        ({"check": FAILS}, "stop", "error", "check: InternalServerError", []),
    ],
)
def test_answers_are_repaired_and_graded(
    changed: dict[str, str | Completion],
    finish: str,
    outcome: str,
    detail: str,
    stages: list[str],
    questions: list[Question],
    databases: dict[Database, Path],
) -> None:
    model = Gold(questions, finish, changed)
    answers: list[Answer] = asyncio.run(answer_questions(model, questions, databases, ChainConfig(concurrency=3)))
    assert [answer.question for answer in answers] == questions
    for answer in answers:
        assert answer.outcome == outcome and detail in answer.detail
        assert [call.stage for call in answer.calls] == ["link", "write", "check", *stages]
        assert answer.sql == answer.question.sql or outcome != "correct"
        assert bool(answer.calls[-1].completion.error) == (outcome == "error")
    told = [user for stage, user in model.seen if stage == "repair"]
    if "town" in str(changed.get("write")):
        assert all("sql: SELECT town FROM nowhere;\nproblem: no such table: nowhere" in user for user in told)


def test_config_refuses_impossible_limits() -> None:
    with pytest.raises(ValueError, match="concurrency"):
        ChainConfig(concurrency=0)
