"""`agentspec bench load`: real servers with more and more clients; plain decoding and fixed lengths beside agentspec.

Dataset: open prompts, and questions of the text-to-SQL agents; see workloads/load.py.
Metric: tokens a second and a CPU second, accept length, tokens verified a row; see load_rows. Outputs are compared with
those of plain decoding.
Pattern: the servers of all systems are alive and asked in turns, while the others sleep. Every server answers the same
requests. Each workload starts new servers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from agentspec.environment import describe, without_folders
from agentspec.errors import ConfigError
from agentspec.evals.files import work_folder, write_json, write_text
from agentspec.evals.options import Options, check_names
from agentspec.evals.run.phases import Phase, SliceResult
from agentspec.evals.run.turns import ask_in_turns, started
from agentspec.evals.served.hybrid_rows import say_failures
from agentspec.evals.served.load_rows import goals, load_row, markdown, plot, speeds
from agentspec.evals.sql_databases import databases_in
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads.load import DEFAULT_SYSTEMS, LOADED, WORKLOADS, plan_load, row_name
from agentspec.progress import say

_PACKAGES = ("agentspec", "sglang", "torch", "transformers", "openai")
# Large enough to ask every phase in one piece.
_WHOLE = 1 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.names(
        "--systems", DEFAULT_SYSTEMS, f"systems out of {','.join(LOADED)}; `none`, plain decoding, is always included"
    )
    options.names("--workloads", WORKLOADS, "workloads")
    options.numbers("--concurrency", (1, 2, 4, 8, 16), "numbers of clients")
    options.number("--requests", 36, "requests for each number of clients, at least")
    options.number("--turns", 3, "number of parts in which the requests are sent, to all servers in turn")
    options.flag("--quick", "12 requests in 1 turn, with 1, 4 and 16 clients")
    options.flag("--resume", "keep the workloads that FILE of --json has, and measure the others")
    options.number("--seed", 0, "seed of questions and prompts")
    options.file("--json", "write the figures to FILE, after each workload")
    options.file("--markdown", "write the tables to FILE")
    options.file("--plot", "draw tokens a second to FILE, .png or .svg")
    options.folder("--logs", "keep the servers' logs in FOLDER")


def run(args: argparse.Namespace) -> int:
    """Runs the bench and prints its tables; 1 if outputs differ, a server failed, or a goal is missed.

    A server that fails leaves rows with the error, and the others go on.

    Raises:
        ConfigError: An argument is unknown or out of range, or --resume has no file to go on from.
    """
    check_names("--systems", ("none", *args.systems), LOADED)
    if args.quick:
        args.requests, args.turns = 12, 1
        args.concurrency = tuple(number for number in args.concurrency if number in (1, 4, 16)) or args.concurrency
    names = tuple(name for name in LOADED if name == "none" or name in args.systems)
    rows = _kept(args)
    with work_folder(args.logs) as (folder, logs):
        databases = databases_in(folder)
        work = {
            name: plan_load(name, databases, args.concurrency, args.requests, args.turns, args.seed)
            for name in args.workloads
        }
        for workload, phases in work.items():
            if any(row["workload"] == workload for row in rows):
                say(f"{workload}: kept")
                continue
            say(workload)

            def slices(
                stack: ExitStack, name: str, workload: str = workload, phases: Sequence[Phase] = phases
            ) -> Iterator[SliceResult]:
                log = logs / f"{name}-{workload}.log"
                return started(stack, name, LOADED[name], phases, databases, _WHOLE, log)

            done, errors = ask_in_turns(names, slices, lambda done: say(f"  {_progress(done)}"))
            rows += rows_of(workload, names, args.concurrency, args.turns, done, errors)
            records = [goal.record() for goal in goals(rows)]
            write_json(args.json, {"rows": rows, "goals": records, **_context(args, names)})
    table = markdown(rows, command=" ".join(_context(args, names)["command"]))
    print("\n" + table)
    write_text(args.markdown, table)
    if args.plot:
        plot(rows, args.plot)
    return 1 if say_failures(rows) or not all(goal.is_met for goal in goals(rows)) else 0


def rows_of(
    workload: str,
    names: Sequence[str],
    concurrencies: Sequence[int],
    num_turns: int,
    done: Mapping[str, Sequence[SliceResult]],
    errors: Mapping[str, str],
) -> list[dict[str, Any]]:
    """One row for each number of clients and system, with the error where a failed server did not finish."""
    rows = []
    for concurrency in concurrencies:
        turns = {name: [one for one in done[name] if one.row == row_name(workload, concurrency)] for name in names}
        whole = {name: some for name, some in turns.items() if len(some) == num_turns}
        plain = [one.outputs for one in whole["none"]] if "none" in whole else None
        for name in names:
            some = whole.get(name, [])
            same = [one.outputs for one in some] == plain if plain and some else None
            rows.append(load_row(workload, name, concurrency, some, identical=same, error=errors.get(name, "")))
    return rows


def _kept(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of workloads that were measured before without a failure."""
    if not args.resume:
        return []
    if not args.json:
        raise ConfigError("--resume needs --json FILE to go on from")
    if not args.json.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(args.json.read_text(encoding="utf-8"))["rows"]
    failed = {row["workload"] for row in rows if row.get("error")}
    return [row for row in rows if row["workload"] in args.workloads and row["workload"] not in failed]


def _context(args: argparse.Namespace, systems: Sequence[str]) -> dict[str, Any]:
    """What the figures depend on, with file names instead of paths."""
    return {
        **describe(_PACKAGES),
        "systems": {name: [without_folders(word) for word in LOADED[name].words] for name in systems},
        "model": MODEL_FOLDER.name,
        "requests": args.requests,
        "turns": args.turns,
        "concurrency": args.concurrency,
        "seed": args.seed,
    }


def _progress(done: Mapping[str, Sequence[SliceResult]]) -> str:
    """Tokens a second in each server's latest turn."""
    last = {name: results[-1] for name, results in done.items() if results}
    row = next(reversed(last.values())).row if last else ""
    return f"{row or 'warm-up'}: tokens/s " + ", ".join(f"{name} {speeds([one])[0]:.0f}" for name, one in last.items())
