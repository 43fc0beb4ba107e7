"""`agentspec bench hybrid`: suffix drafts and a draft model in one batch, beside each of them alone.

Dataset: held-out questions of the text-to-SQL workflow and open prompts to the same small model; see
workloads/hybrid.py.
Metric: accept length, tokens a second, share of steps with the draft model; see hybrid_rows. Outputs are compared call
by call.
Pattern: the servers of all systems are alive and asked in turns, some requests at a time, while the others sleep, so
that all meet the same disturbances of the machine. Every server answers the same requests. This is repeated with new
processes, because two processes of the same code differ by several per cent, depending on their memory layout. Rows are
medians over these runs.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agentspec.environment import describe, without_folders
from agentspec.errors import ConfigError
from agentspec.evals.files import work_folder, write_json, write_text
from agentspec.evals.options import Options, check_names
from agentspec.evals.run.phases import Phase, SliceResult
from agentspec.evals.run.turns import ask_in_turns, started
from agentspec.evals.served.hybrid_rows import Figures, figures, goals, merge_runs, say_failures
from agentspec.evals.served.hybrid_table import markdown
from agentspec.evals.sql_databases import databases_in
from agentspec.evals.systems import EAGLE3_CHAIN, HYBRIDS, SYSTEMS, eagle3_tree
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads.hybrid import CONCURRENCY, ROWS, WORKLOADS, plan_phases
from agentspec.progress import say
from agentspec.workflows.text_to_sql import Database

# Plain decoding comes first, because the others' outputs are compared with its outputs.
COMPARED = {
    **{name: SYSTEMS[name] for name in ("none", "ngram", "standalone", "eagle3")},
    "eagle3-6": eagle3_tree(6),
    "eagle3-8": eagle3_tree(8),
    "eagle3-chain": EAGLE3_CHAIN,
    "suffix": SYSTEMS["agentspec"],
    **HYBRIDS,
}
_PACKAGES = ("agentspec", "sglang", "torch", "transformers", "openai")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.names("--systems", tuple(COMPARED), "systems to measure; `none`, plain decoding, is always included")
    options.names("--workloads", WORKLOADS, "workloads")
    options.number("--repeats", 3, "measure N times, each time with new servers")
    options.number("--requests", 72, "requests of each kind in a phase")
    options.number("--slice", 12, "requests of a kind before the next server has its turn")
    options.number("--seed", 0, "seed of questions and prompts")
    options.file("--json", "write the figures to FILE, after each repeat")
    options.file("--markdown", "write the tables to FILE")
    options.folder("--logs", "keep the servers' logs in FOLDER")


def run(args: argparse.Namespace) -> int:
    """Runs the bench and prints its tables; 1 if outputs differ, a server failed, or a goal is missed.

    A server that fails leaves a row with the error, and the others go on.

    Raises:
        ConfigError: An argument is out of range or unknown.
    """
    for option in ("repeats", "slice"):
        if getattr(args, option) < 1:
            raise ConfigError(f"--{option} must be at least 1, got {getattr(args, option)}")
    check_names("--systems", ("none", *args.systems), COMPARED)
    names = tuple(name for name in COMPARED if name == "none" or name in args.systems)
    with work_folder(args.logs) as (folder, logs):
        databases = databases_in(folder)
        phases = plan_phases(args.workloads, databases, args.requests, args.seed)
        bench = Bench(names, args.workloads)
        for number in range(args.repeats):
            say(f"run {number + 1} of {args.repeats}")
            bench.measure(names, phases, databases, args.slice, logs, str(number))
            write_json(args.json, {"rows": bench.rows(), "goals": bench.goals(), **context(args, names)})
    rows = bench.rows()
    table = markdown(rows, command=" ".join(context(args, names)["command"]))
    print("\n" + table)
    write_text(args.markdown, table)
    return 1 if say_failures(rows) or not all(goal["met"] for goal in bench.goals()) else 0


class Bench:
    """What the servers have measured so far."""

    def __init__(self, systems: Sequence[str], workloads: Sequence[str]) -> None:
        self._systems = tuple(systems)
        self._rows = tuple(row for name in WORKLOADS if name in workloads for row in ROWS[name])
        self._runs: dict[tuple[str, str], list[Figures]] = {}
        self._outputs: dict[tuple[str, str], list[Any]] = {}
        self._errors: dict[tuple[str, str], str] = {}

    def measure(
        self,
        names: Sequence[str],
        phases: Sequence[Phase],
        databases: dict[Database, Path],
        slice_requests: int,
        logs: Path,
        run: str,
    ) -> None:
        """Starts a server of each system and asks them everything in turns. A failure is recorded for whatever a server
        has not answered, and the others go on."""

        def slices(stack: ExitStack, name: str) -> Iterator[SliceResult]:
            log = logs / f"{name}-{run}.log"
            return started(stack, name, COMPARED[name], phases, databases, slice_requests, log)

        done, errors = ask_in_turns(names, slices, lambda done: say(f"  {_progress(done)}"))
        wanted = Counter(phase.row for phase in phases for _ in phase.slices(slice_requests))
        for row in self._rows:
            for name in names:
                results = [result for result in done[name] if result.row == row]
                if len(results) == wanted[row]:
                    self.add(row, name, results)
                elif name in errors:
                    self._errors[row, name] = errors[name]

    def add(self, row: str, system: str, results: Sequence[SliceResult]) -> None:
        self._runs.setdefault((row, system), []).append(figures(system, results))
        self._outputs.setdefault((row, system), []).append([result.outputs for result in results])

    def rows(self) -> list[dict[str, Any]]:
        """One row for each workload and system that has a run or a failure."""
        return [
            merge_runs(row, name, self._runs.get((row, name), []), identical=self._identical(row, name), error=error)
            for row in self._rows
            for name in self._systems
            if (error := self._errors.get((row, name), "")) or (row, name) in self._runs
        ]

    def goals(self) -> list[dict[str, Any]]:
        return [goal.record() for goal in goals(self.rows())]

    def _identical(self, row: str, system: str) -> bool | None:
        plain, ours = self._outputs.get((row, "none")), self._outputs.get((row, system))
        return all(outputs == plain[0] for outputs in ours) if plain and ours else None


def context(args: argparse.Namespace, systems: Sequence[str]) -> dict[str, Any]:
    """What the figures depend on, with file names instead of paths."""
    return {
        **describe(_PACKAGES),
        "systems": {
            name: [without_folders(word) for word in s.words] for name, s in COMPARED.items() if name in systems
        },
        "model": MODEL_FOLDER.name,
        "requests": args.requests,
        "concurrency": CONCURRENCY,
        "repeats": args.repeats,
        "slice": args.slice,
        "seed": args.seed,
    }


def _progress(done: Mapping[str, Sequence[SliceResult]]) -> str:
    """What each server wrote in the current phase."""
    last = {name: results[-1] for name, results in done.items() if results}
    phase = max((result.phase for result in last.values()), default=0)
    shown = []
    for name, result in last.items():
        found = figures(name, [one for one in done[name] if one.phase == result.phase])
        shown.append(f"{name} {found.tokens_per_second:.0f} ({found.accept_length:.2f})")
    row = next((result.row for result in last.values() if result.phase == phase), "")
    return f"{row or 'warm-up'}: tokens/s (accept length) " + ", ".join(shown)
