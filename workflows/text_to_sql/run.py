"""Runs the staged agents on many questions. A question that fails does not stop the others."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.workflows.text_to_sql.agents.client import SamplingModel
from agentspec.workflows.text_to_sql.agents.transcript import CallFailed, Transcript
from agentspec.workflows.text_to_sql.agents.workflow import RunSql, WorkflowConfig, solve
from agentspec.workflows.text_to_sql.records import Record, record_of
from agentspec.workflows.text_to_sql.sql.sandbox import Sandbox
from agentspec.workflows.text_to_sql.sql.score import graded
from agentspec.workflows.text_to_sql.sql.sources import Source, notes_for, open_source
from agentspec.workflows.text_to_sql.tasks import Task


@dataclass(frozen=True, slots=True)
class Databases:
    """SQLite files by name, and people's notes about them (see `sources.read_notes`)."""

    paths: Mapping[str, Path]
    notes: Mapping[str, list[str]]


async def run_tasks(
    model: SamplingModel,
    tasks: Sequence[Task],
    databases: Databases,
    config: WorkflowConfig,
    *,
    run: str,
    concurrency: int,
    on_record: Callable[[Record], object] = lambda _: None,
) -> list[Record]:
    """Answer the questions, `concurrency` at a time, and return records in their order. Statements run in a sandbox.

    Args:
        model: The model that answers every stage.
        tasks: The questions.
        databases: The questions' databases. A question on an unknown or damaged one fails alone.
        config: The limits of the stages.
        run: Name of the run in the records.
        concurrency: Maximum number of concurrent questions.
        on_record: Called with each record as soon as its question ends.

    Raises:
        ConfigError: Concurrency is below 1.
    """
    if concurrency < 1:
        raise ConfigError(f"concurrency must be at least 1, got {concurrency}")
    gate = asyncio.Semaphore(concurrency)
    sources: dict[str, asyncio.Task[Source]] = {}

    async def source_of(name: str) -> Source:
        if name not in databases.paths:
            known = ", ".join(sorted(databases.paths)[:20])
            raise _Failed(f"no database {name!r}; there is {known}")
        if name not in sources:
            opening = asyncio.to_thread(open_source, name, databases.paths[name], notes_for(databases.notes, name))
            sources[name] = asyncio.create_task(opening)
        try:
            return await sources[name]
        except sqlite3.Error as error:
            raise _Failed(f"cannot read the database {name!r}: {error}") from error

    async def one(task: Task) -> Record:
        async with gate:
            record = await _answer(model, task, source_of, config, run, sandbox.execute)
        on_record(record)
        return record

    with Sandbox() as sandbox:
        return list(await asyncio.gather(*(one(task) for task in tasks)))


class _Failed(Exception):
    """Work on a question cannot begin. Carries the reason."""


async def _answer(
    model: SamplingModel,
    task: Task,
    source_of: Callable[[str], Awaitable[Source]],
    config: WorkflowConfig,
    run: str,
    run_sql: RunSql,
) -> Record:
    head: dict[str, Any] = {"run": run, "config": asdict(config)}
    transcript = Transcript()
    try:
        source = await source_of(task.database)
        # The time to read a database, once per run, does not count towards a question.
        transcript = Transcript()
        solution = await solve(model, task.question, source, config, transcript, run_sql)
    except (CallFailed, _Failed) as failure:
        return record_of(task, transcript, **head, outcome="error", detail=str(failure))
    except ConfigError:
        raise
    except Exception as fault:  # noqa: BLE001 - a fault on one question must not stop the others.
        return record_of(task, transcript, **head, outcome="error", detail=f"internal: {type(fault).__name__}: {fault}")
    record = record_of(task, transcript, **head, outcome="ungraded", sql=solution.sql, fallbacks=solution.fallbacks)
    if not task.sql:
        return {**record, "detail": solution.execution.error or "there is no gold SQL"}
    gold = await asyncio.to_thread(run_sql, source.path, task.sql, timeout_s=config.sql_timeout_s)
    if not gold.ok:
        return {**record, "detail": f"the gold SQL fails: {gold.error}"}
    outcome, detail = graded(task.sql, gold, solution.execution, truncated=transcript.truncated)
    return {**record, "outcome": outcome, "detail": detail}
