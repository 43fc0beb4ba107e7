"""What a step pays for handing over a finished output, in every state of the store.

Only Sharing.publish() is measured: CPU time of the calling thread, for an output of 2,000 tokens in the form that the
scheduler has, a list. The caches are emptied before each call, as the rest of a step does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.config import EngineConfig
from agentspec.engine import Engine, request_hash
from agentspec.evals.micro.store.delaying_proxy import DelayingProxy
from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.evals.micro.store.replica import LOAD_SECONDS, NAMESPACE, NEVER, Replica
from agentspec.evals.micro.store.rows import Row
from agentspec.evals.micro.texts import Tokens
from agentspec.progress import Progress
from agentspec.store.config import SharingConfig

OUTPUT_TOKENS = 2000
DELAY_SECONDS = 0.3
STATES = ("healthy", "slow", "dead")
# Emptying the caches takes only a few milliseconds, so outputs finish faster than on any server.
_TOUCHED_BYTES = 16 << 20
_TAIL = 16
# Number of outputs that fit into the queue that is to overflow.
_FEW_OUTPUTS = 20


def publish_rows(text: Tokens, number: int, folder: Path) -> Iterator[Row]:
    """A row for each state of the store; the outputs are `number` windows of a text."""
    outputs = windows(text, number + number // 10, OUTPUT_TOKENS)
    with Progress("publish", len(STATES)) as progress:
        for i, state in enumerate(STATES):
            progress.update(i, state)
            with ExitStack() as stack:
                server = stack.enter_context(RedisServer(folder / state))
                url = server.url
                if state == "slow":
                    proxy = stack.enter_context(DelayingProxy(server.port, DELAY_SECONDS))
                    url = f"redis://127.0.0.1:{proxy.port}"
                variants = {state: _measure(url, server, outputs, state)}
                if state == "dead":
                    server.resume()
                    variants["full queue"] = _measure(url, server, outputs, state, _FEW_OUTPUTS)
                    server.resume()
                    variants["refused"] = _measure(url, server, outputs, "refused")
            worst = max(variants.values(), key=lambda figures: figures["p50_us"])
            yield Row(case=f"publish_us_{state}", value=worst["p50_us"], unit="us of CPU", more=variants)


def windows(text: Tokens, number: int, length: int, seed: int = 0) -> list[Tokens]:
    """Views of a text that begin at random positions."""
    starts = np.random.default_rng(seed).integers(0, len(text) - length, size=number)
    return [text[start : start + length] for start in starts]


def _measure(
    url: str, server: RedisServer, outputs: Sequence[Tokens], state: str, queue_outputs: int | None = None
) -> dict[str, Any]:
    queue = {} if queue_outputs is None else {"queue_tokens": queue_outputs * (OUTPUT_TOKENS + _TAIL)}
    config = SharingConfig(keep_seconds=NEVER, load_seconds=LOAD_SECONDS, **queue)
    cpu_us, wall_us = [], []
    touched = np.zeros(_TOUCHED_BYTES // 8)
    # The scheduler frees its requests without a store too, so this is not measured.
    kept = []
    with Replica(url, Engine(EngineConfig(background=True)), config) as replica:
        if state == "dead":
            server.pause()
        elif state == "refused":
            server.kill()
        num_warming = len(outputs) // 11
        for i, output in enumerate(outputs):
            request_id = f"output-{i}"
            output_id = request_hash(request_id) << 32 | (i + 1)
            tail, tokens = output[:_TAIL].tolist(), output.tolist()
            kept.append((tail, tokens))
            np.add(touched, 1.0, out=touched)
            begun, cpu_begun = time.perf_counter_ns(), time.thread_time_ns()
            replica.sharing.publish(NAMESPACE, output_id, request_id, tail, tokens, len(tokens))
            cpu_ended, ended = time.thread_time_ns(), time.perf_counter_ns()
            if i >= num_warming:
                cpu_us.append((cpu_ended - cpu_begun) / 1e3)
                wall_us.append((ended - begun) / 1e3)
        health = replica.sharing.health()
        if state == "dead":
            server.resume()
        elif state == "refused":
            server.start()
    return {
        "p50_us": round(statistics.median(cpu_us), 2),
        "p99_us": round(float(np.percentile(cpu_us, 99)), 2),
        "wall_p50_us": round(statistics.median(wall_us), 2),
        "wall_p99_us": round(float(np.percentile(wall_us, 99)), 2),
        "published": len(outputs),
        "delivered_then": health["delivered_outputs"],
        "dropped_then": health["dropped_outputs"],
    }
