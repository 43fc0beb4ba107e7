"""Runs the staged agents on many questions. A question that fails does not stop the others."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentspec.errors import ConfigError
from agentspec.workflows.text_to_sql.agents.client import SamplingModel
from agentspec.workflows.text_to_sql.agents.transcript import CallFailed, Transcript
from agentspec.workflows.text_to_sql.agents.workflow import RunSql, WorkflowConfig, solve
from agentspec.workflows.text_to_sql.records import Record, record_of
from agentspec.workflows.text_to_sql.sql.sandbox import Sandbox
from agentspec.workflows.text_to_sql.sql.scorers import Grader, ScorerName
from agentspec.workflows.text_to_sql.sql.sources import Databases, Source, notes_for, open_source
from agentspec.workflows.text_to_sql.tasks import Task

# Scoring reads large results, so only this number of questions is graded at a time.
_GRADED_AT_A_TIME = 2


def recorded_config(config: WorkflowConfig, scorer: ScorerName) -> dict[str, Any]:
    """The settings that a record holds: those that its answer and its outcome depend on."""
    return {**asdict(config), "scorer": scorer}


async def run_tasks(
    model: SamplingModel,
    tasks: Sequence[Task],
    databases: Databases,
    config: WorkflowConfig,
    *,
    run: str,
    concurrency: int,
    scorer: ScorerName = "rows",
    on_record: Callable[[Record], object] = lambda _: None,
) -> list[Record]:
    """Answer the questions, `concurrency` at a time, and return records in their order. Statements run in a sandbox.
    Raises ConfigError if concurrency is below 1.

    Args:
        databases: The questions' databases. A question on an unknown or damaged one fails alone.
        run: Name of the run in the records.
        concurrency: Maximum number of concurrent questions.
        scorer: The rules by which an answer counts as correct.
        on_record: Called with each record as soon as its question ends.
    """
    if concurrency < 1:
        raise ConfigError(f"concurrency must be at least 1, got {concurrency}")
    gate = asyncio.Semaphore(concurrency)
    sources: dict[str, asyncio.Task[Source]] = {}

    async def source_of(name: str) -> Source:
        if name not in databases.paths:
            there = ", ".join(sorted(databases.paths)[:20])
            raise _Failed(f"no database {name!r}; there is {there}")
        if name not in sources:
            known = notes_for(databases.notes, name), databases.descriptions.get(name)
            opening = asyncio.to_thread(open_source, name, databases.paths[name], *known)
            sources[name] = asyncio.create_task(opening)
        try:
            return await sources[name]
        except sqlite3.Error as error:
            raise _Failed(f"cannot read the database {name!r}: {error}") from error

    async def one(task: Task) -> Record:
        async with gate:
            record = await _answer(model, task, source_of, _Setting(config, run, scorer), sandbox.execute, grade)
        on_record(record)
        return record

    grading = asyncio.Semaphore(_GRADED_AT_A_TIME)

    async def grade(source: Source, gold: str, sql: str, truncated: bool) -> tuple[str, str]:
        async with grading:
            return await asyncio.to_thread(grader.grade, source.path, gold, sql, truncated=truncated)

    with Sandbox() as sandbox, Grader(scorer, config.sql_timeout_s) as grader:
        return list(await asyncio.gather(*(one(task) for task in tasks)))


class _Failed(Exception):
    """Work on a question cannot begin. Carries the reason."""


@dataclass(frozen=True, slots=True)
class _Setting:
    config: WorkflowConfig
    run: str
    scorer: ScorerName


async def _answer(
    model: SamplingModel,
    task: Task,
    source_of: Callable[[str], Awaitable[Source]],
    setting: _Setting,
    run_sql: RunSql,
    grade: Callable[[Source, str, str, bool], Awaitable[tuple[str, str]]],
) -> Record:
    config = setting.config
    head: dict[str, Any] = {"run": setting.run, "config": recorded_config(config, setting.scorer)}
    transcript = Transcript()
    try:
        source = await source_of(task.database)
        # The time to read a database, once per run, does not count towards a question.
        transcript = Transcript()
        solution = await solve(model, task.question, source, config, transcript, run_sql, task.evidence)
    except (CallFailed, _Failed) as failure:
        return record_of(task, transcript, **head, outcome="error", detail=str(failure))
    except ConfigError:
        raise
    except Exception as fault:  # noqa: BLE001 - a fault on one question must not stop the others.
        return record_of(task, transcript, **head, outcome="error", detail=f"internal: {type(fault).__name__}: {fault}")
    record = record_of(task, transcript, **head, outcome="ungraded", sql=solution.sql, fallbacks=solution.fallbacks)
    if not task.sql:
        return {**record, "detail": solution.execution.error or "there is no gold SQL"}
    if not solution.sql:
        return {
            **record,
            "outcome": "truncated" if transcript.truncated else "wrong",
            "detail": solution.execution.error,
        }
    outcome, detail = await grade(source, task.sql, solution.sql, transcript.truncated)
    return {**record, "outcome": outcome, "detail": detail}
