"""The options of the command, and the checks that need no file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, get_args

from agentspec.errors import ConfigError
from agentspec.workflows.text_to_sql.agents.workflow import WorkflowConfig
from agentspec.workflows.text_to_sql.sets.published import SetFormat
from agentspec.workflows.text_to_sql.sql.safety import refusal
from agentspec.workflows.text_to_sql.sql.scorers import ScorerName

_PROGRAM = "python -m agentspec.workflows.text_to_sql"


def check_options(options: argparse.Namespace) -> None:
    """Check what can be checked before any file of questions is read. Raises ConfigError if options contradict each
    other, or are out of range."""
    if not options.reference and (options.base_url is None or options.model is None):
        raise ConfigError("--base-url and --model name the server and the model that answer; both are needed")
    if options.reference and options.base_url is not None and options.model is None:
        raise ConfigError("--model names the model of --base-url; it is needed")
    _check_questions(options)
    if options.reference and options.generated is None:
        raise ConfigError("--reference knows the answers of generated questions alone; add --generated N")
    for name in ("generated", "limit", "concurrency"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} must be at least 1, got {value}")
    if options.skip < 0:
        raise ConfigError(f"--skip must be at least 0, got {options.skip}")
    if options.timeout <= 0 or options.retries < 0:
        raise ConfigError(
            f"--timeout must be above 0 and --retries at least 0, got {options.timeout}, {options.retries}"
        )
    for name, file in (("--out", options.out), ("--json", options.json)):
        if file is not None and not file.parent.is_dir():
            raise ConfigError(f"{name} must lie in a folder that exists, got {file}; make {file.parent} first")
    # If sqlglot is not installed, this fails now and not during the first question.
    refusal("SELECT 1")


def _check_questions(options: argparse.Namespace) -> None:
    own_files = options.databases is not None and options.questions is not None
    if options.generated is None and options.format is None and options.dataset is None and not own_files:
        raise ConfigError(
            "the questions must come from one of --format and --dataset, --databases and --questions, or --generated N"
        )
    if options.generated is not None and (options.databases or options.questions or options.notes or options.dataset):
        raise ConfigError(
            "--generated makes databases and questions; it goes without --dataset, --databases, --questions, --notes"
        )
    if (options.format is None) != (options.dataset is None):
        raise ConfigError(
            "--format and --dataset need each other: --format names the format of the set in the folder --dataset"
        )
    if options.format is not None and options.databases is not None:
        raise ConfigError("--dataset brings its databases; leave --databases out, or leave --format and --dataset out")
    if options.difficulty is not None and options.format is None:
        raise ConfigError("--difficulty selects questions of a set with difficulties; it needs --format and --dataset")


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"a JSON object is needed, got {text}")
    return found


def arguments_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
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
    add(
        "--stream",
        action="store_true",
        help="stream the answers, as `agentspec ab` does to know when the first token comes",
    )
    add("--timeout", type=float, default=120.0, metavar="S", help="seconds an answer may take (default %(default)g)")
    add("--retries", type=int, default=4, metavar="N", help="of a call that timed out, or met a server that was down "
        "or overloaded, with growing pauses (default %(default)s)")  # fmt: skip
    add("--format", choices=get_args(SetFormat), help="read --dataset as this set is distributed")
    add("--dataset", type=Path, metavar="FOLDER", help="the folder that BIRD or Spider was unzipped to")
    add(
        "--databases", type=Path, metavar="PATH", help="a SQLite file, or a folder with NAME.sqlite or NAME/NAME.sqlite"
    )
    add("--questions", type=Path, metavar="FILE", help='with --databases: JSON lines {"question", "database", "sql"?, '
        '"id"?}, also .xz, .gz; with --dataset: the file of the set to ask, e.g. train.json (default: the development '
        "set)")  # fmt: skip
    add("--notes", type=Path, metavar="FILE", help='what to know about the data, JSON lines {"note", "database"?}')
    add("--difficulty", metavar="NAME", help="ask only questions of this difficulty; BIRD has simple, moderate and "
        "challenging")  # fmt: skip
    add("--skip", type=int, default=0, metavar="N", help="leave out the first N questions (default %(default)s)")
    add("--limit", type=int, metavar="N", help="ask at most N questions")
    add("--scorer", choices=get_args(ScorerName), help="rules of execution accuracy: those of BIRD, of Spider, or rows, "
        "which compares multisets of rows (default: by --format, else rows)")  # fmt: skip
    add("--context-tokens", type=int, metavar="N", help="show at most about N tokens of a schema in a prompt: a larger "
        "schema is cut to what the question needs (default: every prompt holds the whole schema, however large)")  # fmt: skip
    add("--generated", type=int, metavar="N", help="N questions over generated databases, in place of files")
    add("--split", choices=("train", "heldout"), default="heldout", help="side of generated ones (default %(default)s)")
    add("--reference", action="store_true", help="answer from the gold of the generated questions: without a server, or "
        "with --base-url as what it is forced to write")  # fmt: skip
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
