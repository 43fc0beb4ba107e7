"""What a step takes: times of verify steps, and traces of torch's profiler, summed up where they were recorded."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from agentspec.cli.profile import ProfilePlan, measured_profile
from agentspec.errors import ServerError
from agentspec.evals.gpu.records import Record
from agentspec.evals.gpu.replays import Servers, measure
from agentspec.evals.gpu.run import Run
from agentspec.evals.gpu.servers import WIDTHS, device_arguments
from agentspec.evals.gpu.site import PROFILER
from agentspec.evals.gpu.sizes import model_folder
from agentspec.evals.gpu.work import Cell
from agentspec.integrations.servers.server import Server
from agentspec.progress import say

_STEPS = 50
_MOST_BYTES = 3 << 20
"""A larger trace is summed up and does not come back."""


def profile(run: Run) -> None:
    """Measures the verify steps of one server that uses all widths in turn, and keeps the profile.

    Raises:
        ConfigError: The points do not determine the costs.
        ServerError: The server did not start, or does not report its steps.
        OutOfTimeError: Too little time is left.
    """
    run.check_time(needed=120.0)
    most = 2 if run.on_cpu else 16
    words = [*device_arguments(run.backend, most), "--disable-prefill-cuda-graph"]
    if run.size.is_random:
        words += ["--load-format", "dummy"]
    plan = ProfilePlan(
        model=model_folder(run.size, run.data),
        batch_sizes=[1, most] if run.on_cpu else [1, 4, most],
        context_lengths=[48, 160] if run.on_cpu else [256, 2048],
        widths=[1, 2, 4] if run.on_cpu else list(WIDTHS),
        sweep=True,
        rest=words,
    )
    found = measured_profile(plan)
    found.save(run.out / f"profile-{run.size.name}.json")
    cost = found.target
    run.results.add(
        {
            "part": "profile",
            "size": run.size.name,
            "backend": run.backend,
            "alpha_us": cost.alpha * 1e6,
            "gamma_us": cost.gamma * 1e6,
            "delta_ms": cost.delta * 1e3,
            "r2": found.r2,
            "points": len(found.points),
        }
    )


def trace(run: Run, servers: Servers) -> None:
    """Records some steps of each system while it answers, and what the device did in them.

    Raises:
        ServerError: A server recorded nothing.
        OutOfTimeError: The deadline came first.
    """
    (run.out / "traces").mkdir(exist_ok=True)
    # With one client a trace is short enough to be read. What was measured least often comes first, because the deadline
    # may come before the last.
    cell = next(cell for cell in servers.cells if cell.clients == min(run.clients))
    for system, server in reversed(list(servers.alive.items())):
        run.check_time(needed=12.0)
        # The answers were learnt in the replay, so that accept lengths are higher than they were then.
        at = {"part": "trace", "system": system, "trace": cell.trace, "clients": cell.clients}
        with tempfile.TemporaryDirectory(prefix="agentspec-trace-") as name:
            folder = Path(name)
            figures = _traced(run, server, folder, cell, system)
            recorded = _recorded(folder)
            if recorded is None:
                raise ServerError(f"the server {system} recorded no trace; see its log")
            with gzip.open(recorded, "rt") as file:
                events = json.load(file)["traceEvents"]
            run.results.add({**at, **figures, **summed(events)})
            if recorded.stat().st_size < _MOST_BYTES:
                shutil.copyfile(recorded, run.out / "traces" / f"{system}.json.gz")
        say(f"  {system} traced")


def sample(run: Run, servers: Servers) -> None:
    """Samples the Python stack of each system's scheduler while many clients ask: what the host spends its time on.

    Raises:
        ServerError: A scheduler could not be sampled.
        OutOfTimeError: The deadline came first.
    """
    sampler = shutil.which("py-spy", path=os.pathsep.join((str(PROFILER.parent), os.environ.get("PATH", ""))))
    if sampler is None:
        raise ServerError("py-spy must be in the PATH to sample schedulers")
    (run.out / "traces").mkdir(exist_ok=True)
    cell = next(cell for cell in servers.cells if cell.clients == max(run.clients))
    for system, server in reversed(list(servers.alive.items())):
        run.check_time(needed=8.0)
        pids = [pid for pid in server.processes() if "scheduler" in Path(f"/proc/{pid}/cmdline").read_text()]
        stacks = run.out / "traces" / f"{system}.stacks"
        command = [sampler, "record", "--nonblocking", "--format", "raw", "--rate", "200", "--output", str(stacks)]
        with subprocess.Popen([*command, "--pid", str(pids[-1])], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as of:
            figures = measure(server, cell, system)
            of.send_signal(signal.SIGINT)
            _, said = of.communicate()
        if not stacks.is_file():
            raise ServerError(f"the scheduler of {system} could not be sampled: {said.decode()[-300:]}")
        told = inclusive(stacks.read_text(encoding="utf-8"))
        run.results.add(
            {"part": "samples", "system": system, "trace": cell.trace, "clients": cell.clients, **figures, **told}
        )
        say(f"  {system} sampled")


def inclusive(stacks: str) -> Record:
    """Shares of the samples in which a function was on the stack, the largest first. `stacks`: lines of frames separated by
    semicolons, and a count."""
    counts: Counter[str] = Counter()
    total = 0
    for line in stacks.splitlines():
        frames, _, number = line.rpartition(" ")
        total += int(number)
        for frame in set(frames.split(";")):
            counts[frame] += int(number)
    return {"samples": total, "shares": {name: round(n / total, 4) for name, n in counts.most_common(80)}}


def _traced(run: Run, server: Server, folder: Path, cell: Cell, system: str) -> Record:
    """The figures of a cell in the middle of which the profiler recorded."""
    body = {"output_dir": str(folder), "num_steps": 5 if run.on_cpu else _STEPS}
    # The calls of torch's operations would slow the host down too much.
    body["activities"] = ["CPU"] if run.on_cpu else ["GPU"]
    failed: list[OSError] = []

    def start() -> None:
        time.sleep(0.0 if run.on_cpu else 0.3)
        try:
            server.post("/start_profile", body, timeout=20.0)
        except OSError as error:
            failed.append(error)

    starter = threading.Thread(target=start)
    starter.start()
    figures = measure(server, cell, system)
    starter.join()
    if failed:
        raise ServerError(f"the server's profiler did not start: {failed[0]}")
    return figures


def _recorded(folder: Path) -> Path | None:
    """The trace in a folder, when it is complete; None if there is none after 20 seconds."""
    size = -1
    for _ in range(40):
        time.sleep(0.5)
        for path in folder.glob("**/*.trace.json.gz"):
            if path.stat().st_size == size:
                return path
            size = path.stat().st_size
    return None


def summed(events: list[dict[str, Any]]) -> Record:
    """What a Chrome trace of torch's profiler says: busy share, gaps, and totals in milliseconds."""
    device = sorted(
        (e["ts"], e["ts"] + e["dur"], e["name"], e["cat"])
        for e in events
        if e.get("ph") == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    if not device:
        return {"error": "the trace has no kernels"}
    busy, gaps, reached = 0.0, [], device[0][0]
    for begin, end, _, _ in device:
        if begin > reached:
            gaps.append(begin - reached)
        busy += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    kernels: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for begin, end, name, _ in device:
        kernels[name[:80]] += end - begin
    for e in events:
        if e.get("ph") == "X" and e.get("cat") in ("cuda_runtime", "cuda_driver"):
            calls[e["name"]] += e["dur"]
    whole = reached - device[0][0]
    return {
        "milliseconds": round(whole / 1e3, 3),
        "busy_share": round(busy / whole, 4),
        "gaps_over_50_us": sum(gap > 50 for gap in gaps),
        "gap_ms_over_50_us": round(sum(gap for gap in gaps if gap > 50) / 1e3, 3),
        "launches": len(device),
        "kernels_ms": {name: round(us / 1e3, 3) for name, us in kernels.most_common(20)},
        "host_calls_ms": {name: round(us / 1e3, 3) for name, us in calls.most_common(10)},
    }
