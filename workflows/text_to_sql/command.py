"""`python -m agentspec.workflows.text_to_sql`: the staged agents on a set of questions.

Dataset: BIRD, Spider, questions on SQLite files, or questions drawn over the generated databases.
Metric: execution accuracy by the rules of the set; seconds a question and the share outside the model; tokens a stage.
Pattern: agents over an OpenAI-compatible server, several questions at a time; records are kept as they come.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentspec.environment import describe
from agentspec.errors import AgentspecError, ConfigError
from agentspec.progress import Progress
from agentspec.record_file import RecordFile, write_json
from agentspec.workflows.text_to_sql.agents.client import OpenAIChat, SamplingModel
from agentspec.workflows.text_to_sql.agents.workflow import WorkflowConfig
from agentspec.workflows.text_to_sql.generated.reference import ForcedChat, ReferenceConfig, ReferenceModel
from agentspec.workflows.text_to_sql.options import arguments_parser, check_options
from agentspec.workflows.text_to_sql.records import Record, resumed
from agentspec.workflows.text_to_sql.run import recorded_config, run_tasks
from agentspec.workflows.text_to_sql.sets.published import read_set
from agentspec.workflows.text_to_sql.sql.hardness import hardness
from agentspec.workflows.text_to_sql.sql.scorers import ScorerName
from agentspec.workflows.text_to_sql.sql.sources import Databases, find_databases, read_notes
from agentspec.workflows.text_to_sql.summary import summary_of, table
from agentspec.workflows.text_to_sql.tasks import Task, generated_tasks, read_tasks

_PACKAGES = ("agentspec", "openai", "sqlglot", "sglang", "torch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line. The exit status is 1 if a question failed and 2 if an argument is wrong."""
    parser = arguments_parser()
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except AgentspecError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.prog}: stopped" + ("; run again to go on" if options.out else ""), file=sys.stderr)
        return 130


def run(options: argparse.Namespace) -> int:
    """Answers the questions and prints the summary. Raises ConfigError if arguments contradict each other, or a file
    cannot be read."""
    check_options(options)
    config = _config(options)
    with tempfile.TemporaryDirectory(prefix="text-to-sql-") as folder:
        if options.generated:
            drawn = generated_tasks(Path(folder), options.generated, split=options.split, seed=options.seed)
            tasks, databases = drawn.tasks, Databases(drawn.paths, {})
            mistakes = ReferenceConfig(seed=options.seed)
            reference = ReferenceModel(drawn.questions, drawn.paths, mistakes) if options.reference else None
            asked = f"generated, {options.split}"
        else:
            tasks, databases, asked = _published(options) if options.format else _own_files(options)
            reference = None
        tasks = tasks[options.skip :][: options.limit]
        records = asyncio.run(_answer(options, tasks, databases, config, reference))
    summary = summary_of(records)
    print(table(summary))
    write_json(options.json, {**_context(options, config, asked), **summary})
    return 1 if summary["outcomes"]["error"] else 0


def _published(options: argparse.Namespace) -> tuple[list[Task], Databases, str]:
    """The questions of a set, its databases, and the name of the file of questions."""
    found = read_set(
        options.format,
        options.dataset,
        questions=options.questions,
        difficulty=options.difficulty,
        # Databases of other questions need not be there.
        limit=None if options.limit is None else options.skip + options.limit,
    )
    beside = f" (there are also {', '.join(file.name for file in found.others)})" if found.others else ""
    described = sum(map(len, found.databases.descriptions.values()))
    print(
        f"{len(found.tasks)} questions of {found.file} on {len(found.databases.paths)} databases, {described} columns "
        f"described{beside}",
        file=sys.stderr,
    )
    databases = found.databases
    if options.notes:
        databases = replace(databases, notes=read_notes(options.notes))
    return found.tasks, databases, f"{options.format}, {found.file.name}"


def _own_files(options: argparse.Namespace) -> tuple[list[Task], Databases, str]:
    """The same for the user's own questions and databases."""
    paths = find_databases(options.databases)
    tasks = read_tasks(options.questions, next(iter(paths)) if len(paths) == 1 else "")
    if _scorer(options) == "spider":
        tasks = [replace(task, difficulty=task.difficulty or hardness(task.sql)) for task in tasks]
    return tasks, Databases(paths, read_notes(options.notes) if options.notes else {}), options.questions.name


def _scorer(options: argparse.Namespace) -> ScorerName:
    name: ScorerName = options.scorer or options.format or "rows"
    return name


async def _answer(
    options: argparse.Namespace,
    tasks: Sequence[Task],
    databases: Databases,
    config: WorkflowConfig,
    reference: ReferenceModel | None,
) -> list[Record]:
    name = _run_name(options)
    file = RecordFile(options.out) if options.out else None
    kept = resumed(file, name, recorded_config(config, _scorer(options))) if file else {}
    if options.out:
        # Whoever reads the records, as `agentspec ab` does, must tell a run without questions from one that failed.
        options.out.touch()
    left = [task for task in tasks if not _is_kept(task, kept)]
    if kept:
        print(f"{len(tasks) - len(left)} of {len(tasks)} questions were answered before", file=sys.stderr)
    async with AsyncExitStack() as stack:
        model = await _model(options, reference, stack)
        with Progress("questions", len(tasks)) as progress:
            done, correct = len(tasks) - len(left), 0

            def take(record: Record) -> None:
                nonlocal done, correct
                done, correct = done + 1, correct + (record["outcome"] == "correct")
                if file:
                    file.append(record)
                progress.update(done, f"{correct} correct")

            new = await run_tasks(
                model,
                left,
                databases,
                config,
                run=name,
                concurrency=options.concurrency,
                scorer=_scorer(options),
                on_record=take,
            )
    by_session = {**kept, **{record["session"]: record for record in new}}
    return [by_session[task.identity] for task in tasks]


def _is_kept(task: Task, kept: Mapping[str, Record]) -> bool:
    record = kept.get(task.identity)
    known = (task.database, task.question, task.evidence, task.sql)
    if record is not None and tuple(record.get(name, "") for name in ("task", "question", "evidence", "gold")) != known:
        raise ConfigError(
            f"--out holds another question under the id {task.identity!r}, or other evidence or gold SQL for it: "
            f"{record['question']!r}; name another file"
        )
    return record is not None


async def _model(options: argparse.Namespace, reference: ReferenceModel | None, stack: AsyncExitStack) -> SamplingModel:
    if reference is not None and options.base_url is None:
        return reference
    try:
        from openai import AsyncOpenAI
    except ImportError:
        raise ConfigError("calling a server needs openai; run pip install 'sglang-agentspec[workflows]'") from None
    client = AsyncOpenAI(
        base_url=options.base_url,
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        timeout=options.timeout,
        max_retries=options.retries,
    )
    chat = OpenAIChat(
        await stack.enter_async_context(client),
        options.model,
        options.extra_body,
        names_groups=options.name_groups,
        streams=options.stream,
    )
    return chat if reference is None else ForcedChat(chat, reference)


def _config(options: argparse.Namespace) -> WorkflowConfig:
    return WorkflowConfig(
        drafts=options.drafts,
        temperature=options.temperature,
        max_retries=options.asks - 1,
        max_repairs=options.max_repairs,
        notes=options.num_notes,
        max_tokens=options.max_tokens,
        sql_timeout_s=options.sql_timeout,
        seed=options.seed,
        context_tokens=options.context_tokens,
    )


def _run_name(options: argparse.Namespace) -> str:
    if not options.reference:
        return str(options.model)
    return f"reference, {ReferenceConfig().wrong_sql:g} wrong" + (
        f", written by {options.model}" if options.base_url else ""
    )


def _context(options: argparse.Namespace, config: WorkflowConfig, asked: str) -> dict[str, Any]:
    """The settings and versions that the figures depend on."""
    described = describe(_PACKAGES)
    return {
        **described,
        "versions": {**described["versions"], "sqlite": sqlite3.sqlite_version},
        "run": _run_name(options),
        "questions_file": asked,
        "seed": options.seed,
        "concurrency": options.concurrency,
        "config": recorded_config(config, _scorer(options)),
    }
