"""A follower under load: two processes that finish outputs, one that drafts from them, one store.

    writer 1 ──┐
               ├─ 200 outputs a second of 2,000 tokens ─> store ─> follower's engine
    writer 2 ──┘

The lag of an output is the time from its end in the writer until the follower has indexed it. All processes run on one
machine with one clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.config import EngineConfig
from agentspec.engine import Engine, TokenArray, request_hash
from agentspec.errors import StoreError
from agentspec.evals.micro.store.processes import START_SECONDS, processes
from agentspec.evals.micro.store.replica import NAMESPACE, NEVER, SCOPE, Replica, empty_store, stored_bytes
from agentspec.evals.micro.store.rows import Row
from agentspec.evals.micro.texts import Tokens
from agentspec.progress import Progress
from agentspec.store.config import SharingConfig
from agentspec.store.urls import open_store

LOAD_ROWS = ("follower_lag_p50_s", "follower_lag_p99_s", "lost_outputs")
NUM_WRITERS = 2
OUTPUTS_PER_SECOND = 200
OUTPUT_TOKENS = 2000
_TAIL = 16
# Interval at which the follower's index is checked. Measured lags are too long by at most this.
_LOOK_SECONDS = 0.005
# The follower stops waiting for missing outputs this long after the last arrival.
_PATIENCE = 20.0


@dataclass(frozen=True, slots=True, eq=False)
class _Written:
    """The report of a writer at its end."""

    output_ids: NDArray[np.uint64]
    finished: NDArray[np.float64]
    """Seconds since 1970."""
    seconds: float
    health: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Followed:
    """The report of the follower at its end. Times are in seconds since 1970."""

    output_ids: NDArray[np.uint64]
    arrived: NDArray[np.float64]
    """When each was passed to the engine."""
    indexed: NDArray[np.float64]
    """When each was seen in the index."""
    most_waiting: int
    """Greatest number of outputs that waited to be indexed at one time."""
    health: Mapping[str, Any]


def load_rows(kind: str, text: Tokens, seconds: float, folder: Path) -> Iterator[Row]:
    """Lags and losses. Rows of Redis have the plain names, rows of SQLite those names and `_sqlite`."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "text.npy", text)
    with empty_store(kind, folder) as url:
        written, followed = _run(url, folder / "text.npy", seconds, f"load, {kind}")
        store = open_store(url, SCOPE)
        stored = stored_bytes(store)
        store.close()
    suffix = "" if kind == "redis" else f"_{kind}"
    finished = {
        output_id: when
        for writer in written
        for output_id, when in zip(writer.output_ids.tolist(), writer.finished.tolist(), strict=True)
    }
    received = set(followed.output_ids.tolist())
    known = np.array([output_id in finished for output_id in followed.output_ids.tolist()], bool)
    ends = np.array([finished[output_id] for output_id in followed.output_ids[known].tolist()])
    if not len(ends):
        raise StoreError(f"the follower received none of {len(finished)} outputs: {followed.health['last_error']}")
    lags, arrivals = followed.indexed[known] - ends, followed.arrived[known] - ends
    rate = sum(len(writer.output_ids) / writer.seconds for writer in written)
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
        "most_waiting_to_be_indexed": followed.most_waiting,
    }
    yield Row(case=f"follower_lag_p50_s{suffix}", value=float(np.median(lags)), unit="s", more=more)
    yield Row(case=f"follower_lag_p99_s{suffix}", value=float(np.percentile(lags, 99)), unit="s", more=more)
    losses = {
        **common,
        "received": len(received & set(finished)),
        "received_twice": len(followed.output_ids) - len(received),
        "dropped_by_writers": sum(writer.health["dropped_outputs"] for writer in written),
        "errors": followed.health["errors"] + sum(writer.health["errors"] for writer in written),
        **stored,
    }
    yield Row(case=f"lost_outputs{suffix}", value=len(set(finished) - received), unit="outputs", more=losses)


def _run(url: str, text: Path, seconds: float, label: str) -> tuple[list[_Written], _Followed]:
    rate = OUTPUTS_PER_SECOND / NUM_WRITERS
    writing = [(_write, (url, text, number, rate, seconds)) for number in range(NUM_WRITERS)]
    with processes(*writing, (_follow, (url,))) as (*writers, follower), Progress(label, round(seconds)) as progress:
        begun = time.monotonic()
        while not all(writer.poll(0.2) for writer in writers):
            progress.update(round(min(time.monotonic() - begun, seconds)), "s")
        written: list[_Written] = [writer.recv() for writer in writers]
        follower.send(sum(len(writer.output_ids) for writer in written))
        followed: _Followed = follower.recv()
    return written, followed


class _Sender(Engine):
    """Takes nothing in, because a writer is to measure the store and not the machine."""

    def add(self, namespace: str, output_id: int, tokens: TokenArray, *, num_prompt_tail: int, time: int) -> bool:
        return True


def _write(
    url: str, text_path: Path, number: int, rate: float, seconds: float, together: Barrier, parent: Connection
) -> None:
    text = np.load(text_path)
    starts = np.random.default_rng(number).integers(0, len(text) - OUTPUT_TOKENS, size=round(rate * seconds))
    output_ids, finished = [], []
    config = SharingConfig(keep_seconds=NEVER)
    with Replica(url, _Sender(EngineConfig(budget_bytes=0)), config) as replica:
        together.wait(START_SECONDS)
        begun = time.monotonic()
        for i, start in enumerate(starts):
            # Writers take turns.
            time.sleep(max(0.0, begun + (i + number / NUM_WRITERS) / rate - time.monotonic()))
            request_id = f"writer-{number}-output-{i}"
            output_ids.append(request_hash(request_id) << 32 | (i + 1))
            output = text[start : start + OUTPUT_TOKENS].tolist()
            finished.append(time.time())
            replica.sharing.publish(NAMESPACE, output_ids[-1], request_id, output[:_TAIL], output, len(output))
        took = max(time.monotonic() - begun, 1e-9)
        replica.flush()
        parent.send(
            _Written(
                output_ids=np.array(output_ids, np.uint64),
                finished=np.array(finished),
                seconds=took,
                health=replica.sharing.health(),
            )
        )


class _Noting(Engine):
    """Records when outputs of other replicas arrive."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.output_ids: list[int] = []
        self.arrived: list[float] = []

    def add(self, namespace: str, output_id: int, tokens: TokenArray, *, num_prompt_tail: int, time: int) -> bool:
        added = super().add(namespace, output_id, tokens, num_prompt_tail=num_prompt_tail, time=time)
        self.arrived.append(_now())
        self.output_ids.append(output_id)
        return added


def _now() -> float:
    return time.time()


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
            num_arrived = len(engine.output_ids)
            num_waiting = engine.stats().waiting_outputs
            now = time.time()
            most_waiting = max(most_waiting, num_waiting)
            num_new = num_arrived - num_waiting - len(indexed)
            if num_new > 0:
                indexed += [now] * num_new
                latest = time.monotonic()
            if parent.poll(_LOOK_SECONDS) and expected is None:
                expected = parent.recv()
        num_indexed = len(indexed)
        parent.send(
            _Followed(
                output_ids=np.array(engine.output_ids[:num_indexed], np.uint64),
                arrived=np.array(engine.arrived[:num_indexed]),
                indexed=np.array(indexed),
                most_waiting=most_waiting,
                health=replica.sharing.health(),
            )
        )
