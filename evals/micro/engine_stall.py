"""How long a step of a server waits for the maintenance of the global index."""

from __future__ import annotations

import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Self

import numpy as np

from agentspec.evals.micro.engine_cases import ACCEPTED, MAX_DRAFT_TOKENS, GlobalIndexes, Row
from agentspec.evals.micro.engine_sides import ArcticSide, Ours, Side, engine
from agentspec.evals.micro.texts import Request, Tokens


def stall_rows(
    indexes: GlobalIndexes, outputs: Sequence[Tokens], request: Request, size: str, seconds: float = 5.0
) -> Iterator[Row]:
    """The longest wall time of one request's draft while another thread closes outputs and the index evicts.

    Calls during which the operating system gave the processor to another process do not count, because they only show
    how busy the machine is. Waiting for a lock does count.

    Ours is measured in a separate index whose budget holds nine tenths of the outputs, for `seconds` without the other
    thread and for `seconds` with it. Arctic maintains its tree within a step: its figure is the longest call that
    evicts or inserts an output.
    """
    arctics = {name: side for name, side in indexes.sides.items() if isinstance(side, ArcticSide)}
    if not arctics:
        return
    mine = indexes.sides["ours"]
    assert isinstance(mine, Ours)
    ours = Ours(engine(MAX_DRAFT_TOKENS, int(0.9 * mine.engine.stats().global_bytes)))
    for output in outputs[: indexes.num_outputs]:
        ours.prepare(output)()
    ours.settle()
    evicted = ours.engine.stats().evicted_outputs
    quiet = _draft_walls(ours, request, seconds).all
    with _Churn(ours, outputs) as churn:
        walls = _draft_walls(ours, request, seconds)
    more = {
        "ours_quiet_p50": round(statistics.median(quiet), 2),
        "ours_quiet_max": round(max(quiet), 2),
        "ours_p50": round(statistics.median(walls.all), 2),
        "ours_p99.9": round(float(np.percentile(walls.all, 99.9)), 2),
        # A thread that loses its processor while it holds the GIL makes the other threads wait.
        "ours_max_no_thread_preempted": round(max(walls.alone), 2),
        "drafts": len(walls.all),
        "outputs_closed": churn.closed,
        "outputs_evicted": ours.engine.stats().evicted_outputs - evicted,
    }
    for name, side in arctics.items():
        calls = _maintenance_walls(side, outputs[: indexes.num_outputs // 2], seconds).all
        theirs = {"theirs_p50": round(statistics.median(calls), 2), "calls": len(calls)}
        yield Row(
            case="stall",
            size=size,
            peer=name,
            ours=max(walls.all),
            theirs=max(calls),
            unit="us of wall time",
            more={**more, **theirs},
        )


class _Walls:
    """Wall times in us of calls during which the calling thread kept its processor."""

    def __init__(self) -> None:
        self.all: list[float] = []
        self.alone: list[float] = [0.0]
        """Those during which no other thread of the process lost its processor either."""

    def add(self, work: Callable[[], Any]) -> None:
        thread, process = _preemptions(resource.RUSAGE_THREAD), _preemptions(resource.RUSAGE_SELF)
        started = time.perf_counter_ns()
        work()
        us = (time.perf_counter_ns() - started) / 1e3
        if _preemptions(resource.RUSAGE_THREAD) == thread:
            self.all.append(us)
            if _preemptions(resource.RUSAGE_SELF) == process:
                self.alone.append(us)


def _preemptions(who: int) -> int:
    return resource.getrusage(who).ru_nivcsw


def _draft_walls(side: Side, request: Request, seconds: float) -> _Walls:
    """One draft after another; the request advances, and starts again at its end."""
    walls = _Walls()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        side.open(0, request.prompt)
        for begin in range(0, len(request.output), ACCEPTED):
            side.extend([0], [request.output[begin : begin + ACCEPTED]])
            walls.add(partial(side.draft, [0], MAX_DRAFT_TOKENS))
        side.close(0)
    return walls


def _maintenance_walls(side: ArcticSide, outputs: Sequence[Tokens], seconds: float) -> _Walls:
    walls = _Walls()
    ends = time.monotonic() + seconds
    for i, output in enumerate(outputs):
        walls.add(partial(side.evict, i))
        walls.add(side.prepare(output))
        if time.monotonic() > ends:
            break
    return walls


class _Churn:
    """A thread that finishes one output after another, about a thousand a second."""

    def __init__(self, side: Ours, outputs: Sequence[Tokens]) -> None:
        self.closed = 0
        self._side, self._outputs = side, outputs
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            self._side.prepare(self._outputs[self.closed % len(self._outputs)])()
            self.closed += 1
