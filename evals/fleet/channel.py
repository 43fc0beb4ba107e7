"""`python -m agentspec.evals.fleet.channel`: whether a tenant can tell from latency what another tenant's outputs held.

Dataset: questions to the schema linker of the text-to-SQL agents, live, on the small model.
Metric: the chance that a question that the other tenant asked was answered faster than one that nobody asked, by latency
and by steps; 0.5 tells nothing, 1 everything. Where nothing is told, one standard error is about
0.58 / sqrt(questions).
Pattern: tenant A asks one half of the questions. Then tenant B asks all of them in random order, one at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from agentspec.environment import describe
from agentspec.errors import ServerError
from agentspec.evals.clients.client import Reply
from agentspec.evals.files import work_folder, write_json
from agentspec.evals.fleet.work import FleetSender
from agentspec.evals.options import Program
from agentspec.evals.sql_databases import link_prompts
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads.prompts import served_tokenizer
from agentspec.integrations.servers.server import Server

# Name -> (--agentspec-namespace-from, whether each tenant sends an extra_key of its own).
SETTINGS = {"default": ("auto", False), "extra_key": ("auto", True), "none": ("none", True)}
_LATENCY_TELLS = 0.75


def main(words: Sequence[str] | None = None) -> int:
    options = Program(
        "fleet.channel", "Measures whether a tenant can tell from latency what another tenant's outputs held."
    )
    options.number("--questions", 40, "number of questions, of which tenant A asks one half")
    options.number("--seed", 0, "seed of the questions and their order")
    options.file("--json", "write the figures to FILE")
    options.folder("--logs", "keep the servers' logs in FOLDER")
    return options.run(_run, words)


def _run(args: argparse.Namespace) -> int:
    rows = []
    encode = served_tokenizer(MODEL_FOLDER).encode
    prompts = [encode(text).tolist() for text in link_prompts(args.questions, args.seed)]
    with work_folder(args.logs) as (_, logs):
        for source in dict.fromkeys(source for source, _ in SETTINGS.values()):
            arguments = ("--agentspec-namespace-from", source)
            log = logs / f"channel-{source}.log"
            with Server(MODEL_FOLDER, "AGENTSPEC", log=log, arguments=arguments, start_seconds=1200.0) as server:
                for name in [name for name, (of, _) in SETTINGS.items() if of == source]:
                    server.flush()
                    rows.append(_row(name, server.url, prompts, args.seed))
                    print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    write_json(args.json, {**describe(("agentspec", "sglang")), "rows": rows})
    told = next(row for row in rows if row["setting"] == "extra_key")
    return int(told["by_steps"] > _LATENCY_TELLS or told["by_latency"] > _LATENCY_TELLS)


def _row(name: str, url: str, prompts: Sequence[list[int]], seed: int) -> dict[str, Any]:
    has_keys = SETTINGS[name][1]
    order = random.Random(f"channel/{seed}").sample(range(len(prompts)), len(prompts))
    held = set(order[: len(order) // 2])
    _send(url, [prompts[number] for number in sorted(held)], "tenant-a" if has_keys else "")
    random.Random(f"channel/{seed}/asked").shuffle(order)
    replies = _send(url, [prompts[number] for number in order], "tenant-b" if has_keys else "")
    seen = [reply for number, reply in zip(order, replies, strict=True) if number in held]
    unseen = [reply for number, reply in zip(order, replies, strict=True) if number not in held]
    return {
        "setting": name,
        "questions": len(prompts),
        "by_latency": chance([each.seconds for each in seen], [each.seconds for each in unseen]),
        "by_steps": chance([each.steps / each.tokens for each in seen], [each.steps / each.tokens for each in unseen]),
        "asked_before_ms": round(1000 * statistics.median(each.seconds for each in seen), 1),
        "not_asked_ms": round(1000 * statistics.median(each.seconds for each in unseen), 1),
    }


def chance(seen: Sequence[float], unseen: Sequence[float]) -> float:
    """The chance that one of `seen` is smaller than one of `unseen`, where a tie counts half."""
    wins = sum((one < other) + (one == other) / 2 for one in seen for other in unseen)
    return round(wins / (len(seen) * len(unseen)), 3)


def _send(url: str, prompts: Sequence[list[int]], tenant: str) -> list[Reply]:
    async def work() -> list[Reply]:
        async with FleetSender(url, tenant) as sender:
            sampling = {"temperature": 0, "max_new_tokens": 64}
            return [await sender.send({"input_ids": ids, "sampling_params": sampling}) for ids in prompts]

    replies = asyncio.run(work())
    failed = [reply.error for reply in replies if reply.error]
    if failed:
        raise ServerError(f"{len(failed)} calls failed: {failed[0]}")
    return replies


if __name__ == "__main__":
    sys.exit(main())
