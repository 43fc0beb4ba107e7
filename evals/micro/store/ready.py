"""How long a starting server takes until it drafts from a full store, with a snapshot and from the log alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np

from agentspec.config import EngineConfig
from agentspec.engine import Engine
from agentspec.errors import StoreError
from agentspec.evals.micro.store.processes import processes
from agentspec.evals.micro.store.replica import NAMESPACE, SCOPE, Replica, drop_snapshot, empty_store, stored_bytes
from agentspec.evals.micro.store.rows import Row
from agentspec.evals.micro.texts import Tokens
from agentspec.progress import Progress
from agentspec.store.urls import open_store

# Number of stored outputs that the loaded engine must continue, and the number of their first tokens that it gets.
_NUM_PROBES, _PROBE_TOKENS = 50, 48
# Greatest number of outputs that wait for the store while it is filled.
_BLOCK = 1000


def ready_rows(kind: str, size: str, outputs: Sequence[Tokens], folder: Path) -> Iterator[Row]:
    """Seconds from opening the store in a new process until all of it is indexed."""
    probes = _probes(outputs)
    with empty_store(kind, folder) as url:
        _fill(url, outputs, f"ready, {kind}: filling")
        store = open_store(url, SCOPE)
        for suffix in ("", "_log"):
            if suffix:
                drop_snapshot(store)
            with processes((_start, (url, probes))) as (other,):
                seconds, num_outputs, num_right = other.recv()
            if num_outputs != len(outputs):
                raise StoreError(f"a new replica must load all {len(outputs)} outputs of {url}, got {num_outputs}")
            if num_right < 0.9 * len(probes):
                raise StoreError(f"{num_right} of {len(probes)} probes were drafted right: nothing to show")
            yield Row(
                case=f"ready_{size}_{kind}{suffix}_s",
                value=seconds,
                unit="s",
                more={
                    "from": "log" if suffix else "snapshot",
                    "tokens": sum(map(len, outputs)),
                    "outputs": len(outputs),
                    **stored_bytes(store),
                    "probes_right": f"{num_right} of {len(probes)}",
                },
            )
        store.close()


def _engine() -> Engine:
    return Engine(EngineConfig(background=True, conversation_bytes=0))


def _fill(url: str, outputs: Sequence[Tokens], label: str) -> None:
    """Puts the outputs into the store and writes a snapshot of them."""
    with Replica(url, _engine()) as writer, Progress(label, len(outputs)) as progress:
        for i, output in enumerate(outputs):
            request_id, prompt = f"output-{i}", output[:1]
            writer.engine.open(request_id, prompt, NAMESPACE)
            writer.engine.extend(request_id, output)
            writer.finish(request_id, prompt, output)
            if (i + 1) % _BLOCK == 0:
                writer.flush()
            progress.update(i + 1, "outputs")
        writer.flush()
        writer.sharing.keep_now()


def _probes(outputs: Sequence[Tokens]) -> list[Tokens]:
    """Beginnings of outputs, each with its next token, from all over the store."""
    long_ones = [output[: _PROBE_TOKENS + 1] for output in outputs if len(output) > _PROBE_TOKENS]
    chosen = np.linspace(0, len(long_ones) - 1, min(_NUM_PROBES, len(long_ones))).astype(int)
    return [long_ones[i] for i in chosen]


def _start(url: str, probes: Sequence[Tokens], _together: Barrier, parent: Connection) -> None:
    """Tells the seconds of a start, the outputs loaded, and the probes whose next token was drafted."""
    engine = _engine()
    begun = time.perf_counter()
    with Replica(url, engine):
        engine.flush()
        seconds = time.perf_counter() - begun
        num_right = 0
        for i, probe in enumerate(probes):
            engine.open(f"probe-{i}", probe[:-1], NAMESPACE)
            engine.flush()
            row = engine.draft([f"probe-{i}"]).row(0)
            num_right += int(probe[-1]) in row.tokens[1:][row.parents[1:] == 0].tolist()
        parent.send((seconds, engine.stats().outputs, num_right))
