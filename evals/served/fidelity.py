"""`agentspec bench fidelity`: how well `agentspec simulate` predicts the latency of real servers under load.

Dataset: calls of the text-to-SQL agents and open prompts to the small model, with answers recorded once.
Metric: mean latency of requests, simulated over measured, for each server, batch limit and rate.
Pattern: a profile is measured first. Then a plain server and one with agentspec, each with two limits of its batch, get
Poisson arrivals at shares of their simulated capacity. Each cell has several short runs, and the cells take turns, so
that all meet the same disturbances of the machine. The simulator gets the profile and, for each run, the arrival times,
lengths, cached prompt tokens, the drafts that would have been made, and the pace of the server: how fast its steps
without drafts were just before and after the run. Runs in which the pace changed do not count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from agentspec.cli.profile import ProfilePlan, measured_profile, shown
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.clients.open_loop import Answered, AskedCall, ask_calls, send_at, send_closed
from agentspec.evals.files import work_folder, write_json, write_text
from agentspec.evals.options import Options, check_names
from agentspec.evals.research.tiny_sql.open_chat import draw_open_prompts
from agentspec.evals.run.phases import CALLS_A_QUESTION
from agentspec.evals.served.fidelity_rows import LoadedServer, Run, at_pace, compared, pace, row_of, service_rate
from agentspec.evals.served.fidelity_table import markdown, plot
from agentspec.evals.sql_databases import databases_in
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import Server
from agentspec.progress import Progress, say
from agentspec.scheduling import Profile
from agentspec.simulation import Arrivals
from agentspec.workflows.text_to_sql import draw_questions

BOUND = 0.10
"""Greatest relative error of a mean latency."""
SYSTEMS = ("plain", "agentspec")
_PACKAGES = ("agentspec", "sglang", "torch", "transformers", "openai", "numpy")
# Calls before the first run, so that caches and indexes are not empty.
_WARM_CALLS = 24
_START_SECONDS = 600.0
_STARTS = 2


@dataclass(frozen=True, slots=True)
class _Cell:
    """What several runs have in common."""

    system: str
    limit: int
    share: float


def _shares(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split(","))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.file("--profile", "profile by `agentspec profile --serving` on this machine (default: measured)")
    options.file("--save-profile", "keep the measured profile in FILE")
    rates = "request rates as shares of the service rate (default 0.3,0.6,0.85)"
    options.add("--rates", type=_shares, default=(0.3, 0.6, 0.85), metavar="LIST", help=rates)
    options.numbers("--limits", (4, 16), "greatest numbers of requests in a batch")
    options.names("--systems", SYSTEMS, "systems to measure")
    options.number("--runs", 3, "runs at each rate")
    options.number("--requests", 40, "requests in each run")
    options.flag("--quick", "one run of 12 requests for each cell, with a rough profile")
    options.flag("--resume", "keep the rows of other systems in FILE of --json")
    options.number("--seed", 0, "seed of the work and the arrivals")
    options.file("--json", "write the figures to FILE, after each run")
    options.file("--markdown", "write the table to FILE")
    options.file("--plot", "draw simulated over measured latencies to FILE, .png or .svg")
    options.folder("--logs", "keep the servers' logs in FOLDER")


def run(args: argparse.Namespace) -> int:
    """Runs the bench and prints its table; 1 if an error of plain decoding is out of bounds.

    Raises:
        ConfigError: An argument is unknown or out of range, or the profile holds no serving costs.
        ServerError: A server failed.
    """
    if min(args.requests, args.runs, *args.limits) < 1 or not all(0 < share < 1 for share in args.rates):
        raise ConfigError(
            f"--requests, --runs and --limits must be at least 1 and --rates within 0 and 1, got {args.requests}, "
            f"{args.runs}, {args.limits} and {args.rates}"
        )
    check_names("--systems", args.systems, SYSTEMS)
    kept = _kept(args)
    with work_folder(args.logs) as (folder, logs):
        profile = Profile.load(args.profile) if args.profile else measured_profile(_plan(args))
        if profile.plain is None or profile.speculative is None:
            raise ConfigError("the profile must hold serving costs; measure it with `agentspec profile --serving`")
        file = args.save_profile or folder / "profile.json"
        profile.save(file)
        say(shown(profile))
        done: dict[_Cell, list[Run]] = {}
        for cell, found in _measured(args, profile, file, folder, logs):
            done.setdefault(cell, []).append(found)
            say(
                f"  {cell.system}, {cell.limit} at most, {cell.share:g} of its rate: measured "
                f"{found.measured.mean() * 1e3:.0f} ms, simulated {found.simulated.mean() * 1e3:.0f} ms"
            )
            rows = sorted(kept + [{**asdict(cell), **row_of(runs)} for cell, runs in done.items()], key=_order)
            content = {"rows": rows, "goals": _goals(rows), "profile": shown(profile).splitlines(), **_context(args)}
            write_json(args.json, content)
    table = markdown(content, BOUND)
    print(table)
    write_text(args.markdown, table)
    if args.plot:
        plot(rows, args.plot)
    return 0 if all(goal["met"] for goal in _goals(rows)) else 1


def _plan(args: argparse.Namespace) -> ProfilePlan:
    most = max(args.limits)
    sizes = sorted({1, most} if args.quick else {1, 2, 4, 8, most} | set(args.limits))
    return ProfilePlan(
        model=MODEL_FOLDER,
        batch_sizes=[size for size in sizes if size <= most],
        context_lengths=(48, 160, 320),
        widths=(1, 16) if args.quick else (1, 4, 16),
        seed=args.seed,
        serving=True,
    )


def _measured(
    args: argparse.Namespace, profile: Profile, file: Path, folder: Path, logs: Path
) -> Iterator[tuple[_Cell, Run]]:
    """Every run: one for each turn, rate and server."""
    num_runs, num_requests = (1, 12) if args.quick else (args.runs, args.requests)
    with ExitStack() as stack:
        # A plain server answers all calls once.
        wanted = list(dict.fromkeys([("plain", max(args.limits)), *itertools.product(args.systems, args.limits)]))
        # A start is mostly a sequence of processes that import, so two starts at a time take hardly longer than one.
        with ThreadPoolExecutor(_STARTS) as pool:
            starting = [pool.submit(stack.enter_context, _server(*one, file, logs)) for one in wanted]
        servers = [LoadedServer(*one, server.result()) for one, server in zip(wanted, starting, strict=True)]
        calls = _calls(args, servers[0], num_runs * num_requests * len(args.rates) + _WARM_CALLS, folder)
        say(f"  {len(calls)} calls, {sum(call.output_tokens for call in calls)} tokens")
        # All servers give the same outputs, so these answers show what drafts would gain.
        answers = send_closed(servers[0].server, calls, max(args.limits))
        for server in servers:
            server.server.flush()
            server.take(calls[:_WARM_CALLS], send_closed(server.server, calls[:_WARM_CALLS], server.limit))
        loaded = [server for server in servers if server.system in args.systems]
        for number, (_, share) in enumerate(itertools.product(range(num_runs), args.rates)):
            begin = _WARM_CALLS + number * num_requests
            asked, answered = calls[begin : begin + num_requests], answers[begin : begin + num_requests]
            for server in loaded:
                cell = _Cell(server.system, server.limit, share)
                yield cell, _run(profile, server, share, asked, answered, args.seed + number)


def _run(
    profile: Profile,
    server: LoadedServer,
    share: float,
    asked: Sequence[AskedCall],
    answers: Sequence[Answered],
    seed: int,
) -> Run:
    """Puts load on a server; `answers` are those of another server to the same calls."""
    rng = random.Random(seed)
    factors = [pace(profile, server, rng)]
    rate = share * service_rate(at_pace(profile, factors[0]), server, asked, answers)
    times, _ = Arrivals(intervals=(1 / rate,)).draw(len(asked), seed)
    with Progress(f"{server.system}, {server.limit} at most, {rate:.2f} a second", len(asked)) as progress:
        done = itertools.count(1)
        got = send_at(server.server, asked, times.tolist(), lambda: progress.update(next(done), "requests"))
        factors.append(pace(profile, server, rng))
    identical = all((ours.output == other.output).all() for ours, other in zip(got, answers, strict=True))
    return replace(compared(profile, factors, server, asked, got, rate=rate), identical=identical)


def _server(system: str, limit: int, profile: Path, logs: Path) -> Server:
    arguments = ["--max-running-requests", str(limit)]
    if system == "agentspec":
        arguments += ["--agentspec-profile", str(profile)]
    return Server(
        MODEL_FOLDER,
        "AGENTSPEC" if system == "agentspec" else "none",
        log=logs / f"{system}-{limit}.log",
        arguments=arguments,
        start_seconds=_START_SECONDS,
    )


def _calls(args: argparse.Namespace, plain: LoadedServer, number: int, folder: Path) -> list[AskedCall]:
    """Equal numbers of agents' calls and open prompts, mixed, and answered once by the plain server."""
    databases = databases_in(folder)
    half = -(-number // 2)
    # Some answers are single tokens, and some questions need fewer calls.
    questions = list(islice(draw_questions(databases, split="heldout", seed=args.seed), half // CALLS_A_QUESTION + 4))
    prompts = list(islice(draw_open_prompts(split="heldout", seed=args.seed), half + 2))
    found = ask_calls(plain.server, questions, prompts, databases, plain.limit)
    kinds = [[call for call in found if call.kind == kind][:half] for kind in ("agents", "open")]
    if sum(map(len, kinds)) < number:
        raise ConfigError(
            f"the work has {sum(map(len, kinds))} calls, but {number} are needed; ask for less --requests"
        )
    # The order within each kind stays.
    order = [0] * len(kinds[0]) + [1] * len(kinds[1])
    random.Random(args.seed).shuffle(order)
    each = [iter(calls) for calls in kinds]
    return [next(each[kind]) for kind in order][:number]


def _kept(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of other systems from the file."""
    if not args.resume:
        return []
    if args.json is None or not args.json.exists():
        raise ConfigError("--resume needs --json FILE to go on from")
    rows = json.loads(args.json.read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if row["system"] not in args.systems]


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["share"], row["limit"], SYSTEMS.index(row["system"])


def _goals(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "name": f"plain, {row['limit']} at most, {row['share']:g} of its rate: error of the mean latency",
            "value": row["error"],
            "target": f"within {BOUND:.0%}",
            "met": row["steady_runs"] > 0 and abs(row["error"]) <= BOUND,
        }
        for row in rows
        if row["system"] == "plain"
    ]


def _context(args: argparse.Namespace) -> dict[str, Any]:
    return {
        **describe(_PACKAGES),
        "model": MODEL_FOLDER.name,
        "seed": args.seed,
        "requests": args.requests,
        "runs": args.runs,
    }
