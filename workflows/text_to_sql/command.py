"""`python -m agentspec.workflows.text_to_sql`: the staged agents on a set of questions.

Dataset: questions on SQLite files, or drawn over the generated databases.
Metric: execution accuracy by multisets of rows; seconds a question and the share outside the model; tokens a stage.
Pattern: agents over an OpenAI-compatible server, several questions at a time; records are kept as they come.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from agentspec.errors import AgentspecError, ConfigError
from agentspec.progress import Progress
from agentspec.workflows.text_to_sql.agents.client import OpenAIChat, SamplingModel
from agentspec.workflows.text_to_sql.agents.workflow import WorkflowConfig
from agentspec.workflows.text_to_sql.generated.reference import ForcedChat, ReferenceConfig, ReferenceModel
from agentspec.workflows.text_to_sql.records import Record, RecordFile
from agentspec.workflows.text_to_sql.run import Databases, run_tasks
from agentspec.workflows.text_to_sql.sql.safety import refusal
from agentspec.workflows.text_to_sql.sql.sources import find_databases, read_notes
from agentspec.workflows.text_to_sql.summary import summary_of, table
from agentspec.workflows.text_to_sql.tasks import Task, generated_tasks, read_tasks

_PROGRAM = "python -m agentspec.workflows.text_to_sql"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line. The exit status is 1 if a question failed and 2 if an argument is wrong."""
    parser = _parser()
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
    """Answers the questions and prints the summary.

    Raises:
        ConfigError: Arguments contradict each other, or a file cannot be read.
    """
    _check(options)
    config = _config(options)
    with tempfile.TemporaryDirectory(prefix="text-to-sql-") as folder:
        if options.generated:
            drawn = generated_tasks(Path(folder), options.generated, split=options.split, seed=options.seed)
            tasks, databases = drawn.tasks, Databases(drawn.paths, {})
            mistakes = ReferenceConfig(wrong_sql=options.mistakes, seed=options.seed)
            reference = ReferenceModel(drawn.questions, drawn.paths, mistakes) if options.reference else None
        else:
            paths = find_databases(options.databases)
            tasks = read_tasks(options.questions, next(iter(paths)) if len(paths) == 1 else "")[: options.limit]
            databases = Databases(paths, read_notes(options.notes) if options.notes else {})
            reference = None
        records = asyncio.run(_answer(options, tasks, databases, config, reference))
    summary = summary_of(records)
    print(table(summary))
    if options.json:
        report = {**_context(options, config), **summary}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if summary["outcomes"]["error"] else 0


async def _answer(
    options: argparse.Namespace,
    tasks: Sequence[Task],
    databases: Databases,
    config: WorkflowConfig,
    reference: ReferenceModel | None,
) -> list[Record]:
    name = _run_name(options)
    file = RecordFile(options.out) if options.out else None
    kept = file.resume(name, asdict(config)) if file else {}
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
                model, left, databases, config, run=name, concurrency=options.concurrency, on_record=take
            )
    by_session = {**kept, **{record["session"]: record for record in new}}
    return [by_session[task.identity] for task in tasks]


def _is_kept(task: Task, kept: Mapping[str, Record]) -> bool:
    record = kept.get(task.identity)
    if record is not None and (record["task"], record["question"]) != (task.database, task.question):
        raise ConfigError(
            f"--out holds another question under the id {task.identity!r}: {record['question']!r}; name another file"
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
    )
    return chat if reference is None else ForcedChat(chat, reference)


def _check(options: argparse.Namespace) -> None:
    if not options.reference and (options.base_url is None or options.model is None):
        raise ConfigError("--base-url and --model name the server and the model that answer; both are needed")
    if options.reference and options.base_url is not None and options.model is None:
        raise ConfigError("--model names the model of --base-url; it is needed")
    if options.generated is None and (options.databases is None or options.questions is None):
        raise ConfigError("either --databases and --questions, or --generated N must be given")
    if options.generated is not None and (options.databases or options.questions or options.notes):
        raise ConfigError(
            "--generated makes databases and questions; it goes without --databases, --questions, --notes"
        )
    if options.reference and options.generated is None:
        raise ConfigError("--reference knows the answers of generated questions alone; add --generated N")
    for name in ("generated", "limit", "concurrency"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} must be at least 1, got {value}")
    if options.timeout <= 0 or options.retries < 0:
        raise ConfigError(
            f"--timeout must be above 0 and --retries at least 0, got {options.timeout}, {options.retries}"
        )
    for name, file in (("--out", options.out), ("--json", options.json)):
        if file is not None and not file.parent.is_dir():
            raise ConfigError(f"{name} must lie in a folder that exists, got {file}; make {file.parent} first")
    # If sqlglot is not installed, this fails now and not during the first question.
    refusal("SELECT 1")


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
    )


def _run_name(options: argparse.Namespace) -> str:
    if not options.reference:
        return str(options.model)
    return f"reference, {options.mistakes:g} wrong" + (f", written by {options.model}" if options.base_url else "")


def _context(options: argparse.Namespace, config: WorkflowConfig) -> dict[str, Any]:
    """The settings and versions that the figures depend on."""
    versions = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    for name, distribution in {"agentspec": "sglang-agentspec", "openai": "openai", "sqlglot": "sqlglot"}.items():
        try:
            versions[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return {
        "run": _run_name(options),
        "questions_file": options.questions.name if options.questions else f"generated, {options.split}",
        "seed": options.seed,
        "concurrency": options.concurrency,
        "config": asdict(config),
        "versions": versions,
        "hardware": {"machine": platform.machine(), "cores": os.cpu_count()},
    }


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"a JSON object is needed, got {text}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Agents that answer questions on SQLite databases: classify, extract, enrich, draft, combine, check, "
        "repair. The key of the server is read from OPENAI_API_KEY.",
    )
    add = parser.add_argument
    limits = WorkflowConfig()
    add("--base-url", metavar="URL", help="OpenAI-compatible server, e.g. http://127.0.0.1:30000/v1")
    add("--model", metavar="NAME", help="model name sent to the server")
    add("--extra-body", type=_json_object, metavar="JSON", help="fields that every request carries besides")
    add("--name-groups", action="store_true", help="tell agentspec which drafts are of one question, so that they draft "
        "from each other while they are written; other servers may refuse the field custom_params")  # fmt: skip
    add("--timeout", type=float, default=120.0, metavar="S", help="seconds an answer may take (default %(default)g)")
    add("--retries", type=int, default=4, metavar="N", help="of a call that timed out, or met a server that was down "
        "or overloaded, with growing pauses (default %(default)s)")  # fmt: skip
    add(
        "--databases", type=Path, metavar="PATH", help="a SQLite file, or a folder with NAME.sqlite or NAME/NAME.sqlite"
    )
    add(
        "--questions",
        type=Path,
        metavar="FILE",
        help='JSON lines {"question", "database", "sql"?, "id"?}, also .xz, .gz',
    )
    add("--notes", type=Path, metavar="FILE", help='what to know about the data, JSON lines {"note", "database"?}')
    add("--limit", type=int, metavar="N", help="ask the first N questions")
    add("--generated", type=int, metavar="N", help="N questions over generated databases, in place of files")
    add("--split", choices=("train", "heldout"), default="heldout", help="side of generated ones (default %(default)s)")
    add("--reference", action="store_true", help="answer from the gold of the generated questions: without a server, or "
        "with --base-url as what it is forced to write")  # fmt: skip
    add("--mistakes", type=float, default=0.3, metavar="SHARE", help="share of the reference's drafts that are wrong "
        "(default %(default)g)")  # fmt: skip
    add("--concurrency", type=int, default=4, metavar="N", help="questions in flight (default %(default)s)")
    add("--drafts", type=int, default=limits.drafts, metavar="N", help="SQL drafts a question (default %(default)s)")
    add("--temperature", type=float, default=limits.temperature, metavar="T", help="of drafts (default %(default)g)")
    add("--asks", type=int, default=limits.max_retries + 1, metavar="N", help="times that an answer is asked for before "
        "the stage falls back (default %(default)s)")  # fmt: skip
    add("--max-repairs", type=int, default=limits.max_repairs, metavar="N", help="repair rounds (default %(default)s)")
    add("--num-notes", type=int, default=limits.notes, metavar="N", help="notes looked up (default %(default)s)")
    add("--max-tokens", type=int, default=limits.max_tokens, metavar="N", help="of an answer (default %(default)s)")
    add("--sql-timeout", type=float, default=limits.sql_timeout_s, metavar="S", help="seconds a statement may run "
        "(default %(default)g)")  # fmt: skip
    add("--seed", type=int, default=0, help="of all that is drawn (default %(default)s)")
    add("--out", type=Path, metavar="FILE", help="keep a record a question, with every call, in FILE; a run that was "
        "stopped goes on from it, and questions that failed are asked again")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write the summary to FILE")
    return parser
