"""`python -m agentspec.evals.gpu`: what fits a GPU host that is lent for a quarter of an hour."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentspec.cli.main import exit_on_sigterm
from agentspec.errors import AgentspecError, ConfigError
from agentspec.evals.gpu.correct import check_right
from agentspec.evals.gpu.records import Results, device_gigabytes
from agentspec.evals.gpu.replays import Servers, replay_servers
from agentspec.evals.gpu.run import Run
from agentspec.evals.gpu.servers import HEAD_STEPS
from agentspec.evals.gpu.steps import profile, sample, trace
from agentspec.evals.gpu.trips import LENT_SECONDS, START_SECONDS, TRIPS, next_trip, trip
from agentspec.evals.options import Options
from agentspec.integrations.emulated_device.models.simulated_head import acceptance_for
from agentspec.progress import say

_TO_FINISH = 8.0
"""Seconds kept at the end of a command for stopping servers and bringing back what was written."""

_HEAD_START = 40.0
"""Seconds by which the servers of the checks start before those of the replays. These are ready when the checks are done."""
_SMALL_GIGABYTES = 6.0
"""Of the device's memory, for the small servers that are checked while the others start."""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m agentspec.evals.gpu",
        description="Measures agentspec on a GPU host that is lent for minutes: trips, each of one command.",
    )
    options = Options(found)
    add = options.add
    add("--trip", type=int, metavar="N", help="do this trip")
    options.folder("--data", "folder that was unpacked, or that --prepare made (default .gpu/data)", Path(".gpu/data"))
    options.folder("--out", "folder for records and logs (default gpu-run)", Path("gpu-run"))
    options.number("--elapsed", 0.0, "seconds of the command that have passed already, for unpacking")
    options.number("--within", LENT_SECONDS, "seconds after which the command must have ended, if that is sooner")
    options.flag("--eager-prefill", "capture no prefills, in case that fails")
    options.flag("--plan", "print all trips with estimated seconds, and exit")
    options.flag("--next", "print the next trip with its commands, and exit")
    options.folder("--results", "folder of committed results (default evals/results/gpu)", Path("evals/results/gpu"))
    options.flag("--prepare", "make what the host gets, in the folder --work; needs --traces, --configs, --replica")
    options.flag("--check", "try what --prepare made in the replica of the host; needs --replica")
    options.folder("--work", "for --prepare: folder for archives and their parts (default .gpu)", Path(".gpu"))
    options.folder("--configs", "for --prepare: the models' configs, by their published names")
    options.file("--replica", "for --prepare: Python of an environment with the host's packages; `make gpu-replica`")
    options.names("--sizes", ("llama-8b",), "for --prepare: models that are measured")
    options.flag("--dry-run", "test the procedure on a CPU with the small model; --traces names the recorded traces")
    options.folder("--traces", "for --prepare and a dry run: the recorded traces")
    options.number("--head-accept-length", 2.8, "accept length of the simulated EAGLE-3 head where it drafts alone")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """0 if all was done; 1 if a phase failed or was cut short; 2 for wrong arguments."""
    args = parser().parse_args(argv)
    # Servers are stopped even if the process is terminated because the time is up.
    exit_on_sigterm()
    try:
        if args.plan or args.next:
            _print_plan(None if args.plan else args.results)
            return 0
        return _prepare(args) if args.prepare or args.check else _run(args)
    except AgentspecError as error:
        print(f"agentspec gpu: {error}", file=sys.stderr)
        return 2


def _print_plan(results: Path | None) -> None:
    chosen = TRIPS if results is None else tuple(filter(None, [next_trip(results)]))
    if not chosen:
        print("All trips have complete results. Repeat the second command of trip 1 on the newest code.")
    for one in chosen:
        print(f"Trip {one.number}: {one.asks} {one.kind}; about {one.seconds:.0f} of {LENT_SECONDS:.0f} s")
        print(f"    {START_SECONDS:4.0f} s  ask for the host, start, transfer")
        print(f"  bash evals/gpu/device.sh {one.number}   (ends by itself within {one.limit + _TO_FINISH:.0f} s)")
        for phase in one.phases:
            print(f"    {phase.seconds:4.0f} s  {phase.name}: {phase.does}")


def _prepare(args: argparse.Namespace) -> int:
    from agentspec.evals.gpu.prepare import check, prepare

    for name in ("traces", "configs", "replica") if args.prepare else ("replica",):
        if getattr(args, name) is None:
            raise ConfigError(f"--{name} is needed; see --help")
    work, replica = args.work.absolute(), args.replica.absolute()
    if args.prepare:
        prepare(args.traces, args.configs, work, source=Path.cwd(), replica=replica, sizes=args.sizes)
    else:
        check(work, replica=replica, sizes=args.sizes)
    return 0


def _run(args: argparse.Namespace) -> int:
    began = time.monotonic() - args.elapsed
    if args.trip is None:
        raise ConfigError("--trip N is needed, or --plan or --next; see --help")
    one = trip(args.trip)
    latest = min(one.limit, args.within - _TO_FINISH)
    data, out = args.data.resolve(), args.out.resolve()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    if args.dry_run:
        from agentspec.evals.gpu.prepare import prepare_dry

        if args.traces is None:
            raise ConfigError("--dry-run needs --traces, the folder of recorded traces")
        # The overlap schedule is on, as on a GPU.
        os.environ["SGLANG_CPU_OVERLAP"] = "on"
        prepare_dry(args.traces, data)
    facts = {
        "trip": one.number,
        "commit": os.environ.get("GPU_RUN_COMMIT", "unknown"),
        "dry_run": args.dry_run,
        "head_accept_length": args.head_accept_length,
    }
    run = Run(
        trip=one,
        data=data,
        out=out,
        results=Results(out / "results.json", facts),
        head_acceptance=acceptance_for(args.head_accept_length, HEAD_STEPS),
        head_accept_length=args.head_accept_length,
        deadline=began + latest,
        on_cpu=args.dry_run,
        eager_prefill=args.eager_prefill,
    )
    # A CPU takes longer than the deadlines of a GPU allow.
    factor = 10.0 if args.dry_run else 1.0
    limits = {phase.name: began + factor * min(phase.limit, latest) for phase in one.phases}
    status = _do(run, limits, args.elapsed)
    shown = run.results.table()
    (out / "table.txt").write_text(shown + "\n", encoding="utf-8")
    print(shown)
    return status


def _do(run: Run, limits: dict[str, float], unpacked: float) -> int:
    """Does the phases in their order. One that fails ends early, and the others go on: each has its own servers."""
    phases = [phase.name for phase in run.trip.phases]
    run.results.phases.append({"name": "unpack", "complete": True, "seconds": round(unpacked, 1)})
    for number, systems in enumerate(_side_by_side(run, run.trip.systems)):
        is_checked = "smoke" in phases and not number
        # The small servers, which are needed first, are the first to get the GPU.
        with run.starting(replay_servers(run, systems), after=_HEAD_START if is_checked else 0.0) as wait:
            if is_checked:
                with _phase(run, "smoke", limits):
                    check_right(run, limits)
            servers = None
            with _phase(run, "replay", limits):
                servers = Servers(run, systems, wait(limits["replay"]))
                servers.replay(run.until(limits["replay"]))
            for name, record in (("sample", sample), ("trace", trace)):
                if name in phases and servers is not None:
                    with _phase(run, name, limits):
                        record(run.until(limits[name]), servers)
    if "profile" in phases:
        with _phase(run, "profile", limits):
            profile(run.until(limits["profile"]))
    return 0 if all(done["complete"] for done in run.results.phases) else 1


@contextmanager
def _phase(run: Run, name: str, limits: dict[str, float]) -> Iterator[None]:
    """Notes that a phase began and how it ended."""
    say(f"{name}, {limits[name] - time.monotonic():.0f} s until its deadline")
    run.results.begin(name)
    try:
        yield
    except (AgentspecError, OSError) as error:
        run.results.end(str(error)[-6000:])
        say(f"{run.results.phases[-1]['name']} ended early: {str(error)[-2000:]}")
    else:
        run.results.end()


def _side_by_side(run: Run, systems: Sequence[str]) -> list[Sequence[str]]:
    """Groups of systems whose servers fit the device's memory together."""
    gigabytes = device_gigabytes() - _SMALL_GIGABYTES
    most = max(int(gigabytes / run.size.gigabytes), 1) if gigabytes > 0 else 2
    return [systems[first : first + most] for first in range(0, len(systems), most)]


if __name__ == "__main__":
    sys.exit(main())
