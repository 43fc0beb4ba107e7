"""The chain of agents: link, write, then check and repair until the checker agrees or the rounds are spent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentspec.workflows.text_to_sql.agents.client import ChatModel
from agentspec.workflows.text_to_sql.agents.prompts import (
    Message,
    Stage,
    check_messages,
    link_messages,
    read_sql,
    read_verdict,
    repair_messages,
    write_messages,
)
from agentspec.workflows.text_to_sql.agents.transcript import Call, CallFailed, Transcript
from agentspec.workflows.text_to_sql.generated.databases import Database
from agentspec.workflows.text_to_sql.generated.questions import Question
from agentspec.workflows.text_to_sql.sql.execute import Execution, execute
from agentspec.workflows.text_to_sql.sql.score import Outcome, graded


@dataclass(frozen=True)
class ChainConfig:
    """Limits on concurrent questions, repair rounds per question, answer tokens per call, and seconds per statement."""

    concurrency: int = 8
    max_repairs: int = 2
    max_tokens: int = 256
    sql_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.max_tokens < 1 or self.max_repairs < 0 or self.sql_timeout_s <= 0:
            raise ValueError(
                "concurrency and max_tokens must be at least 1, max_repairs at least 0, sql_timeout_s above 0; "
                f"got {self}"
            )


@dataclass(frozen=True)
class Answer:
    """The chain's answer to one question.

    `sql` is the last statement that ran, or the last one written if none ran. `detail` says why an outcome is not
    "correct". The outcome is "error" if a call failed. A result that is not right is "truncated" if `max_tokens` cut an
    answer, and otherwise "wrong", which includes SQL that fails.
    """

    question: Question
    outcome: Outcome
    sql: str
    calls: tuple[Call, ...]
    detail: str = ""
    seconds: float = 0.0
    """Wall time until the last result was known, without its grading."""
    model_seconds: float = 0.0
    """The part of it with a call in progress."""


async def answer_question(
    model: ChatModel, question: Question, database: Database, path: Path, config: ChainConfig
) -> Answer:
    """Run the chain on one question and score its last result against the gold SQL on the database at `path`."""
    transcript = Transcript()

    async def ask(stage: Stage, messages: list[Message]) -> str:
        return await transcript.ask(stage, messages, model.complete(messages, config.max_tokens))

    async def result_of(sql: str) -> Execution:
        return await asyncio.to_thread(execute, path, sql, timeout_s=config.sql_timeout_s)

    sql, kept, execution = "", "", Execution(error="no statement was written")
    try:
        links = await ask("link", link_messages(database, question.text))
        sql = read_sql(await ask("write", write_messages(database, question.text, links)))
        for repairs_left in range(config.max_repairs, -1, -1):
            latest = await result_of(sql)
            # A repair that fails to run never replaces a statement that runs.
            if latest.ok or not execution.ok:
                kept, execution = sql, latest
            verdict = read_verdict(await ask("check", check_messages(question.text, sql, latest)))
            if (latest.ok and verdict.ok) or not repairs_left:
                break
            problem = latest.error or verdict.reason
            sql = read_sql(await ask("repair", repair_messages(database, question.text, sql, problem)))
    except CallFailed as failure:
        return Answer(question, "error", kept or sql, tuple(transcript.calls), str(failure), transcript.seconds)
    seconds, model_seconds = transcript.seconds, transcript.model_seconds()
    gold = await result_of(question.sql)
    outcome, detail = graded(question.sql, gold, execution, truncated=transcript.truncated)
    return Answer(question, outcome, kept, tuple(transcript.calls), detail, seconds, model_seconds)


async def answer_questions(
    model: ChatModel, questions: Sequence[Question], databases: dict[Database, Path], config: ChainConfig
) -> list[Answer]:
    """Run the chain on every question, `config.concurrency` at a time. Answers are in the order of the questions."""
    by_name = {database.name: (database, path) for database, path in databases.items()}
    gate = asyncio.Semaphore(config.concurrency)

    async def one(question: Question) -> Answer:
        async with gate:
            return await answer_question(model, question, *by_name[question.database], config)

    return await asyncio.gather(*(one(question) for question in questions))
