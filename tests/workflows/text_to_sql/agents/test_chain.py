from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from chat_server import chat_server
from openai import AsyncOpenAI

from agentspec.workflows.text_to_sql import (
    Answer,
    ChainConfig,
    Database,
    OpenAIChat,
    Question,
    answer_questions,
    draw_questions,
)
from agentspec.workflows.text_to_sql.agents.prompts import SYSTEM, check_answer, links_answer
from agentspec.workflows.text_to_sql.generated.domains import database_named

# stage, user message -> answer text, or an int: an HTTP status to fail with
Script = Callable[[str, str], str | int]


def fake_server(script: Script, finish_reason: str = "stop") -> AbstractContextManager[str]:
    stages = {text: stage for stage, text in SYSTEM.items()}

    def said(request: dict[str, Any]) -> str | int:
        assert request["temperature"] == 0.0 and request["max_tokens"] == 256
        system, user = request["messages"]
        return script(stages[system["content"]], user["content"])

    return chat_server(said, finish_reason)


@pytest.fixture(scope="module")
def questions(databases: dict[Database, Path]) -> list[Question]:
    return list(islice(draw_questions(databases, split="heldout", seed=0), 8))


def run(
    script: Script, questions: list[Question], databases: dict[Database, Path], finish_reason: str = "stop"
) -> list[Answer]:
    async def chain(url: str) -> list[Answer]:
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await answer_questions(OpenAIChat(client, "tiny"), questions, databases, ChainConfig(concurrency=3))

    with fake_server(script, finish_reason) as url:
        return asyncio.run(chain(url))


def stages(answer: Answer) -> list[str]:
    return [call.stage for call in answer.calls]


def gold_script(questions: list[Question], **changed: str | int) -> Script:
    """A model that gives the gold answers, except for the stages in `changed`."""

    def script(stage: str, user: str) -> str | int:
        if stage in changed:
            return changed[stage]
        question = next(q for q in questions if q.text in user)
        if stage == "link":
            return links_answer(database_named(question.database), question.text, question.query.links())
        if stage == "check":
            assert "rows: " in user or "error: " in user
            return check_answer(question.text, question.sql, "ok", "fine")
        return question.sql

    return script


def test_right_sql_needs_three_calls(questions: list[Question], databases: dict[Database, Path]) -> None:
    answers = run(gold_script(questions), questions, databases)
    assert [answer.question for answer in answers] == questions
    for answer in answers:
        assert answer.outcome == "correct" and answer.sql == answer.question.sql
        assert stages(answer) == ["link", "write", "check"]
    completion = answers[0].calls[0].completion
    assert (completion.prompt_tokens, completion.completion_tokens, completion.finish_reason) == (11, 7, "stop")
    assert completion.extra == {"accept_length": 2.5} and completion.seconds > 0


def test_unreadable_links_and_check_do_not_stop_the_chain(
    questions: list[Question], databases: dict[Database, Path]
) -> None:
    answers = run(gold_script(questions, link="no JSON", check="{"), questions, databases)
    for answer in answers:
        assert answer.outcome == "correct"
        assert stages(answer) == ["link", "write", "check", "repair", "check", "repair", "check"]


def test_failing_sql_is_repaired_whatever_the_checker_says(
    questions: list[Question], databases: dict[Database, Path]
) -> None:
    seen: list[str] = []
    gold = gold_script(questions)

    def script(stage: str, user: str) -> str | int:
        if stage == "repair":
            seen.append(user)
        return "SELECT town FROM nowhere;" if stage == "write" else gold(stage, user)

    for answer in run(script, questions, databases):
        assert answer.outcome == "correct"
        assert stages(answer) == ["link", "write", "check", "repair", "check"]
    assert all("sql: SELECT town FROM nowhere;\nproblem: no such table: nowhere" in user for user in seen)


def test_failing_repair_does_not_replace_running_sql(
    questions: list[Question], databases: dict[Database, Path]
) -> None:
    doubt = check_answer("?", "", "repair", "hm")
    for answer in run(gold_script(questions, check=doubt, repair="SELECT"), questions, databases):
        assert answer.outcome == "correct" and answer.sql == answer.question.sql


def test_wrong_rows_are_wrong(questions: list[Question], databases: dict[Database, Path]) -> None:
    for answer in run(gold_script(questions, write="SELECT 'x';"), questions, databases):
        assert answer.outcome == "wrong" and "rows differ" in answer.detail


def test_sql_that_never_runs_is_wrong(questions: list[Question], databases: dict[Database, Path]) -> None:
    for answer in run(gold_script(questions, write="SELECT", repair="SELEC"), questions, databases):
        assert answer.outcome == "wrong" and answer.sql == "SELEC" and "syntax error" in answer.detail


def test_cut_answers_are_truncated_unless_right(questions: list[Question], databases: dict[Database, Path]) -> None:
    cut = run(gold_script(questions, write="SELECT", repair="SELECT 'x"), questions, databases, finish_reason="length")
    assert {answer.outcome for answer in cut} == {"truncated"}
    right = run(gold_script(questions), questions[:2], databases, finish_reason="length")
    assert [answer.outcome for answer in right] == ["correct"] * 2


def test_api_errors_are_recorded(questions: list[Question], databases: dict[Database, Path]) -> None:
    answers = run(gold_script(questions, check=500), questions, databases)
    for answer in answers:
        assert answer.outcome == "error" and "check: InternalServerError" in answer.detail
        assert stages(answer) == ["link", "write", "check"]
        assert answer.calls[-1].completion.error and not answer.calls[0].completion.error


def test_config_refuses_impossible_limits() -> None:
    with pytest.raises(ValueError, match="concurrency"):
        ChainConfig(concurrency=0)
