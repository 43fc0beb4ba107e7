"""The command: all parts, or some, within some minutes. Finished tasks are kept, and an interrupted run can go on."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agentspec.cli.main import exit_on_sigterm
from agentspec.errors import AgentspecError, ConfigError
from agentspec.evals.gpu.correct import check_parity, check_sampling
from agentspec.evals.gpu.plan import CALLS, PARTS, Task, fits, plan
from agentspec.evals.gpu.prepare import DRY_CONCURRENCIES, prepare, prepare_dry, work_file
from agentspec.evals.gpu.replays import compare
from agentspec.evals.gpu.servers import CPU_BACKEND, HEAD_STEPS
from agentspec.evals.gpu.sizes import SIZES
from agentspec.evals.gpu.steps import compare_predictions, measure_profile
from agentspec.evals.gpu.table import table
from agentspec.evals.gpu.trip import Record, Results, Trip
from agentspec.evals.gpu.work import CONCURRENCIES, Work, load_work
from agentspec.evals.options import Options
from agentspec.integrations.emulated_device.models.simulated_head import PUBLISHED, acceptance_for
from agentspec.progress import say

PREPARE = "prepare"


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m agentspec.evals.gpu",
        description="Measures agentspec on a GPU: correctness, replays of recorded calls by models of real size with "
        "random weights, step times, and the simulator's predictions.",
    )
    options = Options(found)
    options.folder("--data", "folder that --part prepare made (default .gpu)", Path(".gpu"))
    options.folder("--out", "folder for records, profiles and logs (default gpu-run)", Path("gpu-run"))
    options.number("--minutes", float("inf"), "stop after N minutes and keep what is done")
    add = options.add
    parts = f"do only this part: {', '.join((PREPARE, *PARTS))}; may be repeated"
    add("--part", action="append", default=[], metavar="NAME", help=parts)
    calls = f"do only the tasks of this call: {CALLS}; may be repeated"
    add("--call", action="append", type=int, default=[], metavar="N", help=calls)
    sizes = "measure only llama-8b or qwen-32b; may be repeated"
    add("--size", action="append", default=[], metavar="NAME", help=sizes)
    options.flag("--quick", "fewer answers and smaller profiles")
    options.flag("--dry-run", "test the procedure on a CPU, with the small model and few requests")
    options.flag("--plan", "print the tasks and exit")
    length = f"accept length of the simulated EAGLE-3 head on its own; published: {PUBLISHED[0]} to {PUBLISHED[1]}"
    options.number("--head-accept-length", 4.0, length)
    options.folder("--traces", "for prepare: the recorded traces")
    options.folder("--configs", "for prepare: the models' configs, by their published names")
    options.flag("--no-site", "for prepare: do not pack SGLang again")
    options.number("--seed", 0, "for prepare: seed of what is drawn from the traces")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tasks and prints their table last; 1 if one failed or a check was missed, 2 for wrong arguments."""
    args = parser().parse_args(argv)
    # Servers are stopped even if the process is terminated because the time is up.
    exit_on_sigterm()
    try:
        return _run(args)
    except AgentspecError as error:
        print(f"agentspec gpu: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    began = time.monotonic()
    tasks = plan(
        calls=args.call, parts=[part for part in args.part if part != PREPARE], sizes=args.size, dry=args.dry_run
    )
    if args.plan:
        for task in tasks:
            print(f"call {task.call}  {task.seconds:5.0f} s  {task.name}")
        return 0
    if PREPARE in args.part:
        _prepare(args)
        if args.part == [PREPARE]:
            return 0
    if args.dry_run:
        # The overlap schedule is on, as on a GPU.
        os.environ["SGLANG_CPU_OVERLAP"] = "on"
    trip = Trip(
        data=args.data.resolve(),
        out=args.out.resolve(),
        deadline=began + 60.0 * args.minutes,
        on_cpu=args.dry_run,
        quick=args.quick,
        head_acceptance=_acceptance(args.head_accept_length),
        head_accept_length=args.head_accept_length,
        concurrencies=DRY_CONCURRENCIES if args.dry_run else CONCURRENCIES,
    )
    trip.logs.mkdir(parents=True, exist_ok=True)
    settings: Record = {
        "quick": args.quick,
        "dry_run": args.dry_run,
        "head_accept_length": args.head_accept_length,
        "head_acceptance": trip.head_acceptance,
    }
    results = Results(trip.out / "results.json", settings)
    left_out = []
    with trip.busy:
        for task in tasks:
            if results.is_done(task.name):
                say(f"{task.name}: kept")
            elif not fits(task, trip.seconds_left()):
                left_out.append(task.name)
                say(f"{task.name}: left out, {max(trip.seconds_left(), 0.0):.0f} s are left")
            else:
                say(f"{task.name}, {trip.seconds_left():.0f} s left")
                _do(trip, results, task)
    shown = table(results.records, results.errors, left_out)
    (trip.out / "table.txt").write_text(shown + "\n", encoding="utf-8")
    print(shown)
    failed = bool(results.errors) or any(
        "error" in r
        or r.get("draft_errors")
        or r.get("met") is False
        or (r.get("dtype") == "float32" and r.get("identical") is False)
        for r in results.records
    )
    return 1 if failed else 0


def _do(trip: Trip, results: Results, task: Task) -> None:
    records: list[Record] = []
    results.begin(task.name)

    def keep(record: Record) -> None:
        records.append({**record, "call": task.call})
        results.keep(task.name, records)

    backend = CPU_BACKEND if trip.on_cpu else task.backend
    try:
        if task.part == "parity":
            check_parity(trip, keep)
        elif task.part == "sampling":
            check_sampling(trip, keep)
        elif task.part == "replay":
            works = _works(trip, task.size)
            asked = [works[name] for name in task.traces]
            if not compare(trip, SIZES[task.size], backend, task.systems, asked, keep):
                results.fail(task.name, "the time was up before all was measured; run it again")
        elif task.part == "profile":
            keep(measure_profile(trip, SIZES[task.size], backend))
        else:
            works = _works(trip, task.size)
            for record in compare_predictions(trip, SIZES[task.size], list(works.values()), results.records):
                keep(record)
    except (AgentspecError, OSError) as error:
        results.fail(task.name, str(error)[:2000])
        say(f"{task.name} failed: {error}")


def _works(trip: Trip, size: str) -> dict[str, Work]:
    return load_work(work_file(SIZES[size], trip.data))


def _acceptance(accept_length: float) -> float:
    try:
        return acceptance_for(accept_length, HEAD_STEPS)
    except ValueError as error:
        raise ConfigError(f"--head-accept-length: {error}") from error


def _prepare(args: argparse.Namespace) -> None:
    if args.traces is None or (args.configs is None and not args.dry_run):
        raise ConfigError("prepare needs --traces FOLDER and --configs FOLDER; see --help")
    if args.dry_run:
        prepare_dry(args.traces, args.data, seed=args.seed)
        return
    for archive in prepare(args.traces, args.configs, args.data, site=not args.no_site, seed=args.seed):
        print(f"{archive.name}  {archive.stat().st_size / (1 << 20):.1f} MiB")
