"""Bursts of a fleet's clients for a given time, with aborted and bad requests among them, and what memory that takes."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.evals.clients.client import Client
from agentspec.evals.fleet.faults import Fleet
from agentspec.evals.fleet.fleet import Router, settle, store_health
from agentspec.evals.fleet.work import TENANTS, Tally
from agentspec.integrations.servers.server import Server

_BURSTS = (1, 2, 4, 8, 16, 32, 64)
# The first part of the time counts as warm-up.
_WARM_UP = 1 / 3
_ABORT_SECONDS = 0.05
_BAD_BODIES: tuple[dict[str, Any], ...] = (
    {"input_ids": [2**31 - 1], "sampling_params": {"max_new_tokens": 4}},
    {"input_ids": [5], "sampling_params": {"max_new_tokens": 4, "temperature": -1}},
    {"input_ids": [5], "sampling_params": {"max_new_tokens": -4}},
)


def soak(fleet: Fleet, seconds: float, log: Path, seed: int) -> dict[str, Any]:
    """Figures of `seconds` of bursts through a router."""
    draw = random.Random(f"soak/{seed}")
    tally, num_aborted = Tally(), 0
    told: Counter[str] = Counter()
    memory: list[tuple[float, dict[str, int]]] = []
    began = time.monotonic()
    with Router(fleet.replicas, "cache_aware", log) as router:
        while (passed := time.monotonic() - began) < seconds:
            some = draw.choices(fleet.asker.questions, k=draw.choice(_BURSTS))
            # One tenant asks half of everything.
            tenant = 0 if draw.random() < 0.5 else draw.randrange(TENANTS)
            tally.add(fleet.asker.ask(router.url, some, len(some), f"tenant-{tenant}"))
            told[asyncio.run(_disturb(router.url, draw))] += 1
            num_aborted += 1
            memory.append((passed, resident_bytes(fleet.replicas)))
    settle(fleet.replicas)
    return {
        "seconds": round(time.monotonic() - began, 1),
        **tally.figures(),
        "aborted": num_aborted,
        "bad_requests": dict(told),
        "not_refused": told["200"],
        "memory": growth(memory, seconds * _WARM_UP),
        "engine_bytes": [_engine_bytes(server) for server in fleet.replicas],
        "dropped_outputs": sum(store_health(server)["dropped_outputs"] for server in fleet.replicas),
    }


def _engine_bytes(server: Server) -> int:
    told = (server.agentspec_state() or {}).get("engine", {})
    return sum(int(value) for name, value in told.items() if name.endswith("_bytes"))


async def _disturb(url: str, draw: random.Random) -> str:
    """Sends a request whose client leaves, and a bad one; returns the status of the bad one, or "aborted"."""
    async with Client(url) as client:
        body = {"input_ids": [draw.randrange(5, 900) for _ in range(64)], "sampling_params": {"max_new_tokens": 256}}
        try:
            await asyncio.wait_for(client.session.post(f"{url}/generate", json=body), _ABORT_SECONDS)
        except TimeoutError:
            pass
        async with client.session.post(f"{url}/generate", json=draw.choice(_BAD_BODIES)) as response:
            # SGLang may also begin an answer and abort it.
            return "aborted" if '"abort"' in await response.text() else str(response.status)


def resident_bytes(servers: Sequence[Server]) -> dict[str, int]:
    """Resident memory of the servers' processes by what they are."""
    found: dict[str, int] = defaultdict(int)
    for process in (process for server in servers for process in server.processes()):
        folder = Path(f"/proc/{process}")
        try:
            title = (folder / "cmdline").read_text(errors="replace").partition("\0")[0]
            pages = int((folder / "statm").read_text().split()[1])
        except OSError:
            continue
        found[title.strip() if title.startswith("sglang::") else "others"] += pages * 4096
    return dict(found)


def growth(samples: Sequence[tuple[float, dict[str, int]]], after: float) -> dict[str, Any]:
    """By process, the mean of the memory after the warm-up and its slope by least squares, in percent of it an hour."""
    kept = [(at, sizes) for at, sizes in samples if at >= after]
    found = {}
    for name in sorted({name for _, sizes in kept for name in sizes}):
        times, sizes = np.array([at for at, _ in kept]), np.array([each.get(name, 0) for _, each in kept])
        slope = float(np.polyfit(times, sizes, 1)[0]) if len(times) > 2 else 0.0
        mean = float(sizes.mean())
        found[name] = {"mean_mib": round(mean / 2**20, 1), "percent_an_hour": round(360_000 * slope / mean, 2)}
    return found
