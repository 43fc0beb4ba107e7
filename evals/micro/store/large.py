"""`python -m agentspec.evals.micro.store.large`: a server that starts from a large store of many namespaces.

Dataset: made-up outputs. Each namespace has phrases of its own, and an output is a row of them, so that a later output
repeats earlier ones.
Metric: seconds to load, resident memory beside the budget, and the time of a draft, for a new process.
Pattern: a real store, filled through the codec; the process that loads it is one of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.config import EngineConfig
from agentspec.engine import Engine, request_hash
from agentspec.environment import describe
from agentspec.evals.files import write_json
from agentspec.evals.micro.engine import parse_sizes
from agentspec.evals.micro.store.processes import processes
from agentspec.evals.micro.store.replica import CODEC, KINDS, SCOPE, Replica, empty_store
from agentspec.progress import Progress
from agentspec.store.namespaces import namespace_id
from agentspec.store.records import OutputRecord
from agentspec.store.urls import open_store

_VOCABULARY = 32_000
_PHRASES, _PHRASE_TOKENS, _OUTPUT_PHRASES = 60, 20, 25
_OUTPUT_TOKENS = _PHRASE_TOKENS * _OUTPUT_PHRASES
# Entries that are appended in one call.
_BLOCK = 500
_ROWS = 64
# Requests that are drafted for, one after the other, and drafts of each batch.
_PROBES, _STEPS = 256, 20


def _name(number: int) -> str:
    return namespace_id(f"tenant {number}", None)


def _output(namespace: int, number: int) -> NDArray[np.int32]:
    phrases = np.random.default_rng(namespace).integers(0, _VOCABULARY, (_PHRASES, _PHRASE_TOKENS), dtype=np.int32)
    chosen = np.random.default_rng((namespace, number)).integers(0, _PHRASES, _OUTPUT_PHRASES)
    return phrases[chosen].reshape(-1)


def _fill(url: str, num_outputs: int, num_namespaces: int) -> int:
    """Appends outputs to the namespaces in turn. Returns the size of the store in bytes."""
    store = open_store(url, SCOPE)
    now = time.time()
    with Progress("filling", num_outputs) as progress:
        for begin in range(0, num_outputs, _BLOCK):
            entries = []
            for i in range(begin, min(begin + _BLOCK, num_outputs)):
                number, namespace = divmod(i, num_namespaces)
                request_id = f"output-{i}"
                output_id = request_hash(request_id) << 32 | (i + 1)
                name = _name(namespace)
                record = OutputRecord(output_id, request_id, now, 0, _output(namespace, number))
                entries.append((name, CODEC.encode(name, record)))
            store.append(entries)
            progress.update(min(begin + _BLOCK, num_outputs), "outputs")
    used = int(store.info().used_bytes)
    store.close()
    return used


def _resident() -> dict[str, int]:
    """Resident bytes of this process, now and at most."""
    status = Path("/proc/self/status").read_text()
    return {name: int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) << 10 for name in ("VmRSS", "VmHWM")}


def _serve(url: str, budget_bytes: int, num_namespaces: int, _together: Barrier, parent: Connection) -> None:
    engine = Engine(EngineConfig(background=True, budget_bytes=budget_bytes, conversation_bytes=0))
    before = _resident()["VmRSS"]
    begun = time.perf_counter()
    with Replica(url, engine):
        engine.flush()
        seconds = time.perf_counter() - begun
        resident, stats = _resident(), engine.stats()
        parent.send(
            {
                "load_s": round(seconds, 2),
                "loaded_outputs": stats.outputs,
                "loaded_tokens": stats.output_tokens,
                "loaded_namespaces": stats.namespaces,
                "evicted_outputs": stats.evicted_outputs,
                "index_bytes": stats.global_bytes,
                "resident_bytes": resident["VmRSS"] - before,
                "most_resident_bytes": resident["VmHWM"] - before,
                **_drafts(engine, num_namespaces),
            }
        )


def _drafts(engine: Engine, num_namespaces: int) -> dict[str, Any]:
    """Seconds of drafts for requests that repeat stored outputs, one at a time and in batches of namespaces."""
    loaded = {space.name for space in engine.namespaces()}
    chosen = [number for number in range(num_namespaces) if _name(number) in loaded]
    rng = np.random.default_rng(1)
    single: list[float] = []
    right = 0
    for probe in range(_PROBES):
        namespace = int(rng.choice(chosen))
        output = _output(namespace, 0)
        # The end lies within a phrase, so that the next token is known.
        length = int(rng.integers(1, _OUTPUT_PHRASES)) * _PHRASE_TOKENS + _PHRASE_TOKENS // 2
        engine.open(f"probe-{probe}", output[:length], _name(namespace))
        engine.wait_indexed()
        begun = time.perf_counter()
        row = engine.draft([f"probe-{probe}"]).row(0)
        single.append(time.perf_counter() - begun)
        right += int(output[length]) in row.tokens[1:].tolist()
        if probe >= _ROWS:
            engine.close(f"probe-{probe}", keep=False)
    batch = [f"probe-{probe}" for probe in range(_ROWS)]
    together: list[float] = []
    for _ in range(_STEPS):
        # A batch takes long enough to be interrupted on a busy machine, so its CPU time is what counts.
        begun = time.process_time()
        engine.draft(batch)
        together.append(time.process_time() - begun)
    return {
        "drafts_right": f"{right} of {_PROBES}",
        "first_draft_p50_us": round(float(np.median(single)) * 1e6, 1),
        "first_draft_p99_us": round(float(np.percentile(single, 99)) * 1e6, 1),
        f"draft_of_{_ROWS}_rows_cpu_p50_us": round(float(np.median(together)) * 1e6, 1),
    }


def _measured(kind: str, url: str, tokens: int, num_namespaces: int, budgets: list[int]) -> Iterator[dict[str, Any]]:
    num_outputs = tokens // _OUTPUT_TOKENS
    begun = time.perf_counter()
    used = _fill(url, num_outputs, num_namespaces)
    common = {
        "store": kind,
        "stored_tokens": num_outputs * _OUTPUT_TOKENS,
        "stored_outputs": num_outputs,
        "stored_namespaces": num_namespaces,
        "store_bytes": used,
        "fill_s": round(time.perf_counter() - begun, 2),
    }
    for budget in budgets:
        with processes((_serve, (url, budget, num_namespaces))) as (server,):
            figures = server.recv()
        yield {**common, "budget_bytes": budget, **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--tokens", nargs="+", default=["10m", "100m"], help="sizes of stores, such as 100m")
    add("--namespaces", type=int, default=1000)
    add("--budget-mb", nargs="+", type=int, default=[256], help="memory budgets of the engine, in MiB")
    add("--store", choices=KINDS, default="sqlite")
    add("--folder", type=Path, help="where the stores are made (default: a temporary folder)")
    add("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    rows = []
    for size in args.tokens:
        (tokens,) = parse_sizes(size).values()
        with (
            tempfile.TemporaryDirectory(prefix="agentspec-large-", dir=args.folder) as folder,
            empty_store(args.store, Path(folder)) as url,
        ):
            for row in _measured(args.store, url, tokens, args.namespaces, [mb << 20 for mb in args.budget_mb]):
                print(json.dumps(row), flush=True)
                rows.append(row)
                write_json(args.json, {"head": describe(("agentspec", "numpy", "zstandard")), "rows": rows})


if __name__ == "__main__":
    main()
