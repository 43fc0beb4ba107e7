"""What a store costs a server's steps: the same requests to servers that differ in their store only.

    memory   no store; `control` is a second one of these, whose figure shows the noise
    healthy  Redis
    slow     Redis whose replies take 300 ms
    dead     Redis that has stopped answering

Two processes with the same code differ by several per cent of a step, depending on their memory layout. Therefore each
server is compared with itself. In a round it gets each request twice, with and without no_store, which keeps its output
from being learned and shared; this is compared with the same ratio without a store:

    overhead = (with / without no_store, of the server) / (with / without, of memory) - 1

Nothing is drafted, so that every turn takes the same steps, of one token each, the shortest that exist. Turns come one
at a time in an order drawn for each round, so that work that the stores' threads still do after a turn affects all
servers alike. The constant work of those threads, whether anything is finished or not, is reported as a share of a
core.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ServerError
from agentspec.evals.micro.store.delaying_proxy import DelayingProxy
from agentspec.evals.micro.store.publish import DELAY_SECONDS, STATES
from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.evals.micro.store.rows import Row
from agentspec.evals.research.tiny_sql.corpus import draw_samples
from agentspec.evals.research.tiny_sql.tokenizer import render
from agentspec.evals.run.demo_passes import check_active
from agentspec.evals.sql_databases import databases_in
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import Server
from agentspec.progress import Progress

_CONTROL = "control"
_NUM_PROMPTS = 8
# Tokens of an answer. Short turns meet the machine in nearly the same state.
_NEW_TOKENS = 32
# These rounds draft; later rounds do not.
_WARMING_ROUNDS = _NUM_PROMPTS
_RESAMPLES = 2000


@dataclass(slots=True)
class _Turns:
    """A server's turns of one kind, one a round, in us a step."""

    wall_us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    """Of the thread that runs the steps."""
    steps: int = 0


@dataclass(slots=True)
class _Side:
    """One server."""

    server: Server
    scheduler: int
    """Process id."""
    kept: _Turns = field(default_factory=_Turns)
    unkept: _Turns = field(default_factory=_Turns)
    background_ns: int = 0
    """CPU time of all other threads of the scheduler during the counted rounds, the engine's own included."""
    seconds: float = 0.0
    """Duration of those rounds."""

    def ratios(self) -> NDArray[np.float64]:
        """Wall time of a step, kept over not kept."""
        ratios: NDArray[np.float64] = np.array(self.kept.wall_us) / np.array(self.unkept.wall_us)
        return ratios

    def background_percent(self) -> float:
        """Of a core."""
        return 100 * self.background_ns / 1e9 / self.seconds


def step_rows(num_rounds: int, folder: Path) -> Iterator[Row]:
    """A row for each state of the store, and one for the control.

    Raises:
        ServerError: A server does not start, agentspec is not active or drafts nothing, or outputs differ.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prompts = _prompts(folder)
    drawn = random.Random(0)
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer(folder / "redis"))
        stopped = stack.enter_context(RedisServer(folder / "stopped"))
        proxy = stack.enter_context(DelayingProxy(redis.port, DELAY_SECONDS))
        urls = {
            "memory": "memory://",
            _CONTROL: "memory://",
            "healthy": redis.url,
            "slow": f"redis://127.0.0.1:{proxy.port}",
            "dead": stopped.url,
        }
        sides: dict[str, _Side] = {}
        with Progress("step overhead: starting", len(urls)) as progress:
            for name, url in urls.items():
                progress.update(len(sides), name)
                # Separate model names, so that no server learns from another.
                environment = {"AGENTSPEC_STORE": url, "AGENTSPEC_STORE_MODEL": name}
                server = Server(MODEL_FOLDER, "AGENTSPEC", log=folder / f"{name}.log", environment=environment)
                stack.enter_context(server)
                sides[name] = _Side(server, _scheduler(server))
        # Servers stop cleanly only if their stores answer.
        stack.callback(stopped.resume)
        stopped.pause()
        for number in range(_WARMING_ROUNDS):
            _round(list(sides.values()), prompts[number % _NUM_PROMPTS], drawn, is_counted=False)
        for side in sides.values():
            side.background_ns = -_background_ns(side.scheduler)
        begun = time.perf_counter()
        with Progress("step overhead", num_rounds) as progress:
            for number in range(num_rounds):
                _round(list(sides.values()), prompts[number % _NUM_PROMPTS], drawn, is_counted=True)
                progress.update(number + 1, "rounds")
        for side in sides.values():
            side.background_ns += _background_ns(side.scheduler)
            side.seconds = time.perf_counter() - begun
        states = {name: side.server.agentspec_state() for name, side in sides.items()}
    for state in states.values():
        check_active(state)
    if (states["dead"] or {})["store"]["connected"]:
        raise ServerError("the paused Redis server must not answer, but it did; its row would be wrong")
    for name in (_CONTROL, *STATES):
        yield _row(name, sides[name], sides["memory"], (states[name] or {})["store"])


def _prompts(folder: Path) -> list[str]:
    databases = databases_in(folder)
    samples = islice(draw_samples(databases, split="heldout", seed=0), _NUM_PROMPTS)
    return [render(sample.messages) for sample in samples]


def _round(sides: Sequence[_Side], prompt: str, drawn: random.Random, *, is_counted: bool) -> None:
    """Every server gets the request twice, with and without its answer being kept."""
    turns = [(side, is_kept) for side in sides for is_kept in (True, False)]
    drawn.shuffle(turns)
    outputs = []
    for side, is_kept in turns:
        request = {
            "text": prompt,
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": _NEW_TOKENS,
                "ignore_eos": True,
                "custom_params": {"agentspec": {"no_store": not is_kept, "no_draft": is_counted}},
            },
        }
        cpu_begun, begun = _cpu_ns(side.scheduler), time.perf_counter_ns()
        reply = side.server.post("/generate", request)
        ended, cpu_ended = time.perf_counter_ns(), _cpu_ns(side.scheduler)
        outputs.append(reply["output_ids"])
        if is_counted:
            figures = side.kept if is_kept else side.unkept
            steps = reply["meta_info"]["spec_verify_ct"]
            figures.wall_us.append((ended - begun) / 1e3 / steps)
            figures.cpu_us.append((cpu_ended - cpu_begun) / 1e3 / steps)
            figures.steps += steps
    if any(output != outputs[0] for output in outputs):
        raise ServerError("outputs must not depend on the store, but they differ between servers")


def _row(name: str, side: _Side, memory: _Side, store: Mapping[str, Any] | None) -> Row:
    percents = 100 * (side.ratios() / memory.ratios() - 1)
    cpu_us = _kept_more(side) - _kept_more(memory)
    across = 100 * (np.array(side.kept.wall_us) / np.array(memory.kept.wall_us) - 1)
    more: dict[str, Any] = {
        "interval_95": _interval(percents),
        "quartiles": [round(float(np.percentile(percents, at)), 3) for at in (25, 75)],
        "step_thread_cpu_us_more": round(float(np.median(cpu_us)), 2),
        "step_thread_cpu_us_more_interval_95": _interval(cpu_us),
        "background_cpu_percent": round(side.background_percent(), 3),
        "memory_background_cpu_percent": round(memory.background_percent(), 3),
        "step_thread_cpu_us": round(statistics.median(side.kept.cpu_us), 1),
        "wall_us": round(statistics.median(side.kept.wall_us), 1),
        "memory_wall_us": round(statistics.median(memory.kept.wall_us), 1),
        "between_processes_percent": round(float(np.median(across)), 3),
        "rounds": len(percents),
        "steps": [side.kept.steps, side.unkept.steps],
        "memory_steps": [memory.kept.steps, memory.unkept.steps],
    }
    if store is not None:
        counts = ("connected", "delivered_outputs", "queued_outputs", "dropped_outputs", "errors", "breaker_open")
        more["store"] = {count: store[count] for count in counts}
    return Row(case=f"step_overhead_percent_{name}", value=float(np.median(percents)), unit="% of a step", more=more)


def _kept_more(side: _Side) -> NDArray[np.float64]:
    more: NDArray[np.float64] = np.array(side.kept.cpu_us) - np.array(side.unkept.cpu_us)
    return more


def _interval(values: NDArray[np.float64]) -> list[float]:
    """The 95 % interval of the median, by resampling."""
    drawn = np.random.default_rng(0).choice(values, size=(_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return [round(float(low), 3), round(float(high), 3)]


def _cpu_ns(process: int) -> int:
    """CPU time so far of a process's first thread."""
    return int(Path(f"/proc/{process}/task/{process}/schedstat").read_text(encoding="ascii").split()[0])


def _background_ns(process: int) -> int:
    """CPU time so far of all its threads but the first; ended threads are left out."""
    total = -_cpu_ns(process)
    for task in Path(f"/proc/{process}/task").iterdir():
        total += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return total


def _scheduler(server: Server) -> int:
    """The process that runs the server's steps."""
    found = [process for process in server.processes() if "scheduler" in _command(process)]
    if len(found) != 1:
        raise ServerError(f"a server must have one scheduler, got {len(found)}")
    return found[0]


def _command(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8", errors="replace")
