"""`agentspec bench emulation`: whether an emulated device serves as fast as the real model whose step times it has.

Dataset: a recorded task through the small model on this CPU, with the same forced answers everywhere.
Metric: tokens a second of the emulated server over those of the real one, for each number of clients; the goal is 10 %.
Pattern: first, real servers run with a timer around every forward, on calls of their own, and step times are fitted to
the timings. Then the real model and the emulated device serve each system one after another, with the same requests,
the same simulated acceptance of the EAGLE-3 head, and each process on the same core. The emulated device is blocking:
its host waits for every forward, as a CPU does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentspec.environment import describe, without_folders
from agentspec.errors import AgentspecError, ConfigError
from agentspec.evals.emulated import forward_timer
from agentspec.evals.emulated.forward_timer import TimedForward, read_times
from agentspec.evals.emulated.servers import CLOCK, DRAFT_MODEL, bind, release
from agentspec.evals.emulated.step_time_fit import fit_report, fitted
from agentspec.evals.files import plugin_path, write_json
from agentspec.evals.options import Options, check_names
from agentspec.evals.run.calls import Asking, CellResult, ask_cells
from agentspec.evals.run.cells import Cell, plan_cells
from agentspec.evals.systems import EAGLE3_FOLDER, OWN_ESTIMATES, System, chains, width
from agentspec.evals.systems import SYSTEMS as SHIPPED
from agentspec.evals.tables import aligned
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads import TASKS
from agentspec.evals.workloads.task import TaskInputs
from agentspec.integrations.emulated_device.models import simulated_head
from agentspec.integrations.emulated_device.setting import CLOCK_VARIABLE
from agentspec.integrations.servers.server import REPLAYED, Server
from agentspec.progress import say, waiting

BOUND = 0.1
"""Greatest accepted relative error."""
ACCEPT_LENGTH, STEPS = 2.5, 3
"""Of the simulated head, in chains of STEPS passes."""

_HEAD = (DRAFT_MODEL, str(EAGLE3_FOLDER), *chains(STEPS))
SYSTEMS = {
    "none": SHIPPED["none"],
    "ngram": SHIPPED["ngram"],
    "suffix": SHIPPED["agentspec"],
    "eagle3": System("SGLang + EAGLE-3", "EAGLE3", (*_HEAD, *width(STEPS + 1))),
    "hybrid": System("agentspec + EAGLE-3", "AGENTSPEC", (*_HEAD, "--agentspec-base", "EAGLE3"), OWN_ESTIMATES),
}
_TIMED = ("none", "ngram", "eagle3", "hybrid")
"""The step times are fitted to the forwards of these systems, which are of all kinds and widths."""
_TASK = "sql_intercode_spider"
_MOST_PROMPT, _MOST_ANSWER = 512, 96
_PACKAGES = ("agentspec", "sglang", "torch")
_START_SECONDS = 900.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.folder("--data", f"folder with {TASKS[_TASK].trace}", required=True)
    options.names("--systems", tuple(SYSTEMS), "systems to measure")
    options.numbers("--concurrency", (1, 4, 16), "numbers of clients")
    options.number("--requests", 32, "model calls for each number of clients, at least")
    options.number("--repeat", 1, "measure N times, each time with new servers")
    options.file("--out", "write the measured step times to FILE")
    options.number("--seed", 0, "seed of the requests")
    options.file("--json", "write the figures to FILE")
    options.folder("--logs", "keep the servers' logs in FOLDER")


def run(args: argparse.Namespace) -> int:
    """Measures and prints the table; 1 if a server failed or an error is above the bound.

    Raises:
        ConfigError: An argument is unknown or out of range, or the trace is missing.
    """
    check_names("--systems", args.systems, SYSTEMS)
    if args.repeat < 1:
        raise ConfigError(f"--repeat must be at least 1, got {args.repeat}")
    inputs = TaskInputs(
        model=MODEL_FOLDER,
        data=args.data,
        learnt_calls=24,
        max_prompt_tokens=_MOST_PROMPT,
        max_answer_tokens=_MOST_ANSWER,
        seed=args.seed,
    )
    pool = TASKS[_TASK].pool(inputs)
    # Forwards are timed on the calls of the first repeat.
    cells = plan_cells(_TASK, pool, ("warm",), args.concurrency, args.repeat + 1, args.requests)
    with tempfile.TemporaryDirectory(prefix="agentspec-emulation-") as folder:
        servers = Servers(Path(folder), args.logs or Path(folder), max(args.concurrency))
        times, fits = fitted("this-cpu", _timed(servers, [cell for cell in cells if not cell.repeat]))
        path = args.out or Path(folder) / "step-times.json"
        times.save(path)
        rows = []
        for repeat in range(1, args.repeat + 1):
            some = [cell for cell in cells if cell.repeat == repeat]
            for name in args.systems:
                rows += compared(name, repeat, servers, some, path)
    report = {"rows": rows, "step_times": fit_report(fits), **describe(_PACKAGES)}
    write_json(args.json, report)
    print(table(rows, fit_report(fits)))
    bad = [row for row in rows if row.get("error") or abs(row["difference"]) > BOUND]
    return 1 if bad else 0


class Servers:
    """Starts servers of the small model, real and emulated, that differ in nothing else.

    Args:
        folder: For entry points and times.
        logs: For the servers' logs.
        max_running: Greatest number of requests in a batch.
    """

    def __init__(self, folder: Path, logs: Path, max_running: int) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._folder, self._logs, self._max_running = folder, logs, max_running

    def times_file(self, name: str) -> Path:
        """The file with the forwards of a timed server."""
        return self._folder / f"forwards-{name}.jsonl"

    def server(self, name: str, *, emulate: Path | None = None, is_timed: bool = False) -> Server:
        """A server of a system, not started yet.

        Args:
            name: One of SYSTEMS.
            emulate: The file of the step times; None: the model computes.
            is_timed: Whether its forwards are timed.
        """
        system = SYSTEMS[name]
        words = [
            *("--max-running-requests", str(max(self._max_running, 16)), "--max-total-tokens", "65536"),
            *("--grammar-backend", "none", "--skip-server-warmup"),
            *("--chunked-prefill-size", "8192", "--random-seed", "1", *system.arguments),
        ]
        # Both kinds of servers must have the same schedule.
        variables = {"OMP_NUM_THREADS": "1", "SGLANG_CPU_OVERLAP": "on"}
        variables |= {**REPLAYED, **system.variables}
        plugins = []
        if is_timed:
            variables[forward_timer.VARIABLE] = str(self.times_file(name))
            plugins.append(forward_timer.__name__)
        if system.has_drafter:
            variables[simulated_head.VARIABLE] = str(simulated_head.acceptance_for(ACCEPT_LENGTH, STEPS))
            # The emulated device simulates the head itself.
            plugins += [simulated_head.__name__] if emulate is None else []
        if emulate is not None:
            variables[CLOCK_VARIABLE] = CLOCK
        if plugins:
            variables["PYTHONPATH"] = plugin_path(self._folder, plugins)
        release()
        kind = "timed" if is_timed else "emulated" if emulate else "real"
        return Server(
            MODEL_FOLDER,
            system.algorithm,
            log=self._logs / f"{kind}-{name}.log",
            arguments=words,
            environment=variables,
            emulate=None if emulate is None else str(emulate),
            start_seconds=_START_SECONDS,
            on_wait=waiting,
        )


def _timed(servers: Servers, cells: Sequence[Cell]) -> list[TimedForward]:
    """The forwards of real servers that answer the cells."""
    found: list[TimedForward] = []
    for name in _TIMED:
        say(f"{name}: forwards are timed")
        with servers.server(name, is_timed=True) as server:
            bind(server)
            _ask(server, SYSTEMS[name], cells, is_emulated=False)
        some = read_times(servers.times_file(name))
        say(f"  {len(some)} forwards")
        found += some
    return found


def compared(name: str, repeat: int, servers: Servers, cells: Sequence[Cell], times: Path) -> list[dict[str, Any]]:
    """Rows of a system: tokens a second of the real and the emulated server in each cell."""
    results: dict[str, dict[int, CellResult]] = {}
    # The order alternates, because the pace of a machine drifts.
    kinds = ("real", "emulated") if repeat % 2 else ("emulated", "real")
    for kind in kinds:
        try:
            with servers.server(name, emulate=times if kind == "emulated" else None) as server:
                bind(server)
                say(f"{name}, {kind}: ready after {server.start_seconds:.0f} s")
                results[kind] = _ask(server, SYSTEMS[name], cells, is_emulated=kind == "emulated")
        except (AgentspecError, OSError) as error:
            return [{"system": name, "repeat": repeat, "error": f"{kind}: {without_folders(str(error))[:2000]}"}]
    return [
        row_of(name, repeat, clients, results["real"][clients], results["emulated"][clients])
        for clients in results["real"]
    ]


def row_of(name: str, repeat: int, clients: int, real: CellResult, emulated: CellResult) -> dict[str, Any]:
    """The figures of one cell.

    The real server's seconds exclude those that other processes take from its scheduler, as the emulated clock does;
    `real_wall_tokens_per_second` includes them.
    """
    undisturbed = max(real.seconds - real.preempted_seconds, 1e-9)
    speeds = {"real": real.tokens / undisturbed, "emulated": emulated.tokens / emulated.seconds}
    return {
        "system": name,
        "clients": clients,
        "repeat": repeat,
        "tokens": real.tokens,
        "real_tokens_per_second": round(speeds["real"], 2),
        "real_wall_tokens_per_second": round(real.tokens / real.seconds, 2),
        "emulated_tokens_per_second": round(speeds["emulated"], 2),
        "difference": round(speeds["emulated"] / speeds["real"] - 1, 4),
        "real_accept_length": _accept_length(real),
        "emulated_accept_length": _accept_length(emulated),
        "preempted": round(real.preempted_seconds / real.seconds, 4),
        "identical": real.outputs == emulated.outputs,
    }


def table(rows: Sequence[Mapping[str, Any]], fits: Sequence[Mapping[str, Any]]) -> str:
    """For people: the fits, then the cells with medians over repeats."""
    lines = [
        f"{row['kind']:<8} {row['fixed_us'] / 1e3:.2f} ms + {row['per_row_us']:.0f} us a row + {row['per_token_us']:.0f} us a "
        f"token + {row['per_context_us']:.3f} us a token of context; {row['forwards']} forwards, median error "
        f"{row['median_error']:.0%}"
        for row in fits
    ]
    shown = [["system", "clients", "real", "emulated", "error", "preempted", "accept length, real", "emulated", ""]]
    cells: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("error"):
            lines.append(f"{row['system']} failed: {row['error']}")
        else:
            cells.setdefault((row["system"], row["clients"]), []).append(row)
    for (system, clients), some in cells.items():
        real, emulated = (
            statistics.median(row[f"{kind}_tokens_per_second"] for row in some) for kind in ("real", "emulated")
        )
        error = statistics.median(row["difference"] for row in some)
        preempted = statistics.median(row["preempted"] for row in some)
        lengths = [f"{some[0][f'{kind}_accept_length']:.2f}" for kind in ("real", "emulated")]
        notes = [
            *([] if all(row["identical"] for row in some) else ["OUTPUTS DIFFER"]),
            *(["missed"] if abs(error) > BOUND else []),
        ]
        speeds = [f"{real:.1f}", f"{emulated:.1f}", f"{error:+.1%}", f"{preempted:.1%}"]
        shown.append([system, str(clients), *speeds, *lengths, " ".join(notes)])
    return "\n".join([*lines, *aligned(shown)])


def _ask(server: Server, system: System, cells: Sequence[Cell], *, is_emulated: bool) -> dict[int, CellResult]:
    """The results by number of clients."""
    asking = Asking(is_replay=True, is_emulated=is_emulated)
    found = {}
    for turn in ask_cells(server, system, cells, asking):
        if (result := turn.result) is not None:
            found[result.cell.concurrency] = result
            say(f"  {result.cell.concurrency} at a time: {result.tokens / result.seconds:.1f} tokens/s")
    return found


def _accept_length(result: CellResult) -> float:
    """Decoded tokens a verified row; 1 without speculation."""
    steps = sum(reply.steps for reply in result.good)
    return round((result.tokens - len(result.good)) / steps, 4) if steps else 1.0
