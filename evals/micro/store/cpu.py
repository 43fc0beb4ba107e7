"""What sharing outputs takes of the interpreter of a scheduler's process, by the CPU seconds of its threads.

    replica ── 25 outputs a second of 120 tokens ──> store <── 25 outputs a second ── a second replica, or none

Every thread of the store in the scheduler's process is counted, most of whose time holds the GIL, and the call that hands
an output over. The rate is that of an emulated server with 16 clients. CPU seconds, unlike wall time, hardly depend on
what else the machine does.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np

from agentspec.config import EngineConfig
from agentspec.engine import Engine
from agentspec.evals.micro.store.processes import START_SECONDS, processes
from agentspec.evals.micro.store.replica import NEVER, Replica, empty_store
from agentspec.evals.micro.store.rows import Row
from agentspec.evals.micro.texts import Tokens
from agentspec.store.config import SharingConfig

CPU_ROWS = ("share_cpu_us", "share_cpu_us_two_replicas")
OUTPUTS_PER_SECOND, OUTPUT_TOKENS = 25, 120
# Longest time after the last output in which those of the other replica arrive.
_PATIENCE = 20.0


def cpu_rows(kind: str, text: Tokens, seconds: float, folder: Path) -> Iterator[Row]:
    """Microseconds of CPU in the scheduler's process for an output that it finishes; rows of SQLite end in `_sqlite`."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "text.npy", text)
    suffix = "" if kind == "redis" else f"_{kind}"
    for number, name in enumerate(CPU_ROWS, 1):
        with empty_store(kind, folder / str(number)) as url:
            calls = [(_replicate, (url, folder / "text.npy", seconds, each)) for each in range(number)]
            with processes(*calls) as replicas:
                told = [replica.recv() for replica in replicas]
        cpu = {part: sum(each["cpu"][part] for each in told) for part in told[0]["cpu"]}
        outputs = sum(each["outputs"] for each in told)
        took = max(each["seconds"] for each in told)
        inside = sum(used for part, used in cpu.items() if part != "store's process")
        yield Row(
            case=name + suffix,
            value=inside / outputs * 1e6,
            unit="us of CPU an output",
            more={
                "us_by_thread": {part: round(used / outputs * 1e6, 1) for part, used in cpu.items()},
                "percent_of_a_core": round(100 * inside / number / took, 3),
                "us_a_token": round(inside / outputs / OUTPUT_TOKENS * 1e6, 3),
                "outputs": outputs,
                "received_outputs": sum(each["received"] for each in told),
                "tokens_per_output": OUTPUT_TOKENS,
            },
        )


def _replicate(url: str, text_path: Path, seconds: float, number: int, together: Barrier, parent: Connection) -> None:
    text = np.load(text_path)
    count = round(OUTPUTS_PER_SECOND * seconds)
    starts = np.random.default_rng(number).integers(0, len(text) - OUTPUT_TOKENS, size=count).tolist()
    publishing = 0.0
    with Replica(url, Engine(EngineConfig(background=True)), SharingConfig(keep_seconds=NEVER)) as replica:
        threads = [each for each in threading.enumerate() if each.name.startswith("agentspec-store")]
        together.wait(START_SECONDS)
        before = [_cpu(each) for each in threads]
        begun = time.monotonic()
        for i, start in enumerate(starts):
            time.sleep(max(0.0, begun + i / OUTPUTS_PER_SECOND - time.monotonic()))
            output = text[start : start + OUTPUT_TOKENS].tolist()
            used = time.thread_time()
            replica.publish(f"replica-{number}-output", i, output)
            publishing += time.thread_time() - used
        replica.flush()
        expected = count * (together.parties - 1)
        deadline = time.monotonic() + _PATIENCE
        while (received := replica.sharing.health()["received_outputs"]) < expected and time.monotonic() < deadline:
            time.sleep(0.2)
        took = time.monotonic() - begun
        cpu = {each.name: _cpu(each) - was for each, was in zip(threads, before, strict=True)}
    # Its start is counted too.
    told = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu |= {"publish": publishing, "store's process": told.ru_utime + told.ru_stime}
    parent.send({"cpu": cpu, "outputs": count, "received": received, "seconds": took})


def _cpu(thread: threading.Thread) -> float:
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
