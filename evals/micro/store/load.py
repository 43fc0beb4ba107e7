"""A follower under load: two processes that finish outputs, one that drafts from them, one store.

    writer 1 ──┐
               ├─ 200 outputs a second of 2,000 tokens ─> store ─> follower's engine
    writer 2 ──┘

The lag of an output is the time from its end in the writer until the follower has indexed it. All processes run on one
machine with one clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.config import EngineConfig
from agentspec.engine import Engine, TokenArray
from agentspec.errors import StoreError
from agentspec.evals.micro.store.processes import START_SECONDS, processes
from agentspec.evals.micro.store.replica import NEVER, SCOPE, Replica, empty_store, stored_bytes
from agentspec.evals.micro.store.rows import Row
from agentspec.evals.micro.texts import Tokens
from agentspec.progress import Progress
from agentspec.store.config import SharingConfig
from agentspec.store.urls import open_store

LOAD_ROWS = ("follower_lag_p50_s", "follower_lag_p99_s", "lost_outputs")
NUM_WRITERS = 2
OUTPUTS_PER_SECOND = 200
OUTPUT_TOKENS = 2000
# Interval at which the follower's index is checked. Measured lags are too long by at most this.
_LOOK_SECONDS = 0.005
# The engine's add() has an argument named `time`.
_now = time.time
# The follower stops waiting for missing outputs this long after the last arrival.
_PATIENCE = 20.0


def load_rows(kind: str, text: Tokens, seconds: float, folder: Path) -> Iterator[Row]:
    """Lags and losses. Rows of Redis have the plain names, rows of SQLite those names and `_sqlite`."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "text.npy", text)
    with empty_store(kind, folder) as url:
        writers, follower = _run(url, folder / "text.npy", seconds, f"load, {kind}")
        store = open_store(url, SCOPE)
        stored = stored_bytes(store)
        store.close()
    suffix = "" if kind == "redis" else f"_{kind}"
    finished: dict[int, float] = {}
    for writer in writers:
        finished |= writer["finished"]
    arrived = [each for each in follower["outputs"] if each[0] in finished]
    received = {output_id for output_id, _, _ in arrived}
    if not arrived:
        raise StoreError(f"the follower received none of {len(finished)} outputs: {follower['health']['last_error']}")
    lags = np.array([indexed - finished[output_id] for output_id, _, indexed in arrived])
    arrivals = np.array([came - finished[output_id] for output_id, came, _ in arrived])
    rate = sum(len(writer["finished"]) / writer["seconds"] for writer in writers)
    common = {
        "store": kind,
        "outputs": len(finished),
        "outputs_per_second": round(rate, 1),
        "tokens_per_output": OUTPUT_TOKENS,
    }
    more = {
        **common,
        "max_s": round(float(lags.max()), 4),
        "arrival_p50_s": round(float(np.median(arrivals)), 4),
        "arrival_p99_s": round(float(np.percentile(arrivals, 99)), 4),
        "most_waiting_to_be_indexed": follower["most_waiting"],
    }
    yield Row(case=f"follower_lag_p50_s{suffix}", value=float(np.median(lags)), unit="s", more=more)
    yield Row(case=f"follower_lag_p99_s{suffix}", value=float(np.percentile(lags, 99)), unit="s", more=more)
    losses = {
        **common,
        "received": len(received),
        "received_twice": len(arrived) - len(received),
        "dropped_by_writers": sum(writer["health"]["dropped_outputs"] for writer in writers),
        "errors": sum(each["health"]["errors"] for each in (follower, *writers)),
        **stored,
    }
    yield Row(case=f"lost_outputs{suffix}", value=len(set(finished) - received), unit="outputs", more=losses)


def _run(url: str, text: Path, seconds: float, label: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What the writers and the follower tell at their ends."""
    rate = OUTPUTS_PER_SECOND / NUM_WRITERS
    writing = [(_write, (url, text, number, rate, seconds)) for number in range(NUM_WRITERS)]
    with processes(*writing, (_follow, (url,))) as (*writers, follower), Progress(label, round(seconds)) as progress:
        begun = time.monotonic()
        while not all(writer.poll(0.2) for writer in writers):
            progress.update(round(min(time.monotonic() - begun, seconds)), "s")
        written = [writer.recv() for writer in writers]
        follower.send(sum(len(writer["finished"]) for writer in written))
        return written, follower.recv()


class _Sender(Engine):
    """Takes nothing in, because a writer is to measure the store and not the machine."""

    def add(self, namespace: str, output_id: int, tokens: TokenArray, *, num_prompt_tail: int, time: int) -> bool:
        return True


def _write(
    url: str, text_path: Path, number: int, rate: float, seconds: float, together: Barrier, parent: Connection
) -> None:
    text = np.load(text_path)
    starts = np.random.default_rng(number).integers(0, len(text) - OUTPUT_TOKENS, size=round(rate * seconds))
    finished: dict[int, float] = {}
    config = SharingConfig(keep_seconds=NEVER)
    with Replica(url, _Sender(EngineConfig(budget_bytes=0)), config) as replica:
        together.wait(START_SECONDS)
        begun = time.monotonic()
        for i, start in enumerate(starts):
            # Writers take turns.
            time.sleep(max(0.0, begun + (i + number / NUM_WRITERS) / rate - time.monotonic()))
            output = text[start : start + OUTPUT_TOKENS].tolist()
            ended = time.time()
            finished[replica.publish(f"writer-{number}-output", i, output)] = ended
        took = max(time.monotonic() - begun, 1e-9)
        replica.flush()
        parent.send({"finished": finished, "seconds": took, "health": replica.sharing.health()})


class _Noting(Engine):
    """Records when outputs of other replicas arrive."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.arrived: list[tuple[int, float]] = []

    def add(self, namespace: str, output_id: int, tokens: TokenArray, *, num_prompt_tail: int, time: int) -> bool:
        added = super().add(namespace, output_id, tokens, num_prompt_tail=num_prompt_tail, time=time)
        self.arrived.append((output_id, _now()))
        return added


def _follow(url: str, together: Barrier, parent: Connection) -> None:
    engine = _Noting(EngineConfig(background=True))
    indexed: list[float] = []
    most_waiting = 0
    expected: int | None = None
    with Replica(url, engine, SharingConfig()) as replica:
        together.wait(START_SECONDS)
        latest = time.monotonic()
        # `expected` is sent when all writers have flushed.
        while expected is None or (len(indexed) < expected and time.monotonic() < latest + _PATIENCE):
            # Counted first, so that arrivals in between reduce the number of indexed outputs and never raise it.
            num_arrived = len(engine.arrived)
            num_waiting = engine.stats().waiting_outputs
            now = time.time()
            most_waiting = max(most_waiting, num_waiting)
            num_new = num_arrived - num_waiting - len(indexed)
            if num_new > 0:
                indexed += [now] * num_new
                latest = time.monotonic()
            if parent.poll(_LOOK_SECONDS) and expected is None:
                expected = parent.recv()
        # The id of each output, and when it was passed to the engine and seen in the index.
        outputs = [(*arrived, when) for arrived, when in zip(engine.arrived, indexed, strict=False)]
        parent.send({"outputs": outputs, "most_waiting": most_waiting, "health": replica.sharing.health()})
