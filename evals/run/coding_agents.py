"""`make coding-agents`: mini-swe-agent and OpenHands, end to end, against plain SGLang and agentspec in turns.

Dataset: local tasks with a bug each, and recorded sessions of the reference solver on them. No model here can solve such
tasks, so servers write the recorded answers token by token, at the cost of their own steps (forced answers). The agents'
loops, their tools and the tests are real.
Metric: wall time of a task, split into model, tools and framework; whether every conversation is the recorded one.
Pattern: record once, then `agentspec ab` over the same tasks. A server refuses a prompt that was not recorded, so a
conversation that takes another course ends in an error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.files import write_json
from agentspec.evals.options import Program
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.progress import say
from agentspec.workflows.swe.agents.agent_config import AGENTS

# The agents' prompts are longer than what the small model was made for. With forced answers that does no harm.
_SERVER_ARGUMENTS = "--context-length 49152 --max-total-tokens 131072 --chunked-prefill-size 512"
_VARIABLES = {"OMP_NUM_THREADS": "1", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
_PACKAGES = ("agentspec", "sglang", "torch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; the status is 1 if a conversation differs from its recording or a task failed."""
    options = Program("run.coding_agents", (__doc__ or "").partition("\n\n")[2])
    options.choices("--agent", AGENTS, "agent to run (default: all)")
    options.number("--tasks", 12, "number of tasks")
    options.number("--seed", 11, "of the tasks")
    options.number("--concurrency", 2, "tasks at a time")
    options.folder("--out", "(default %(default)s)", Path("build/coding-agents"))
    options.file("--json", "write the figures to FILE")
    return options.run(_run, arguments)


def _run(options: argparse.Namespace) -> int:
    rows = [compared(agent, options) for agent in options.agent or AGENTS]
    write_json(options.json, {"rows": rows, "tasks": options.tasks, "seed": options.seed, **describe(_PACKAGES)})
    # `agentspec ab` has printed the seconds of each agent.
    for row in rows:
        print(
            f"{row['agent']}: {row['identical']} of {row['tasks']} conversations are the recorded ones on both servers"
        )
    return 0 if all(row["identical"] == row["tasks"] and not row["failed"] for row in rows) else 1


def compared(agent: str, options: argparse.Namespace) -> dict[str, Any]:
    """Records an agent's sessions, replays them on both servers, and compares the conversations.

    Raises:
        ConfigError: A command failed.
    """
    folder = options.out.absolute() / agent
    folder.mkdir(parents=True, exist_ok=True)
    tasks, recording, workspace = folder / "tasks", folder / "recording.jsonl", folder / "work"
    if not tasks.exists():
        _call("agentspec.workflows.swe", "tasks", "--out", tasks, "--seed", options.seed, "--count", options.tasks)
    # The workspace's path is part of the prompts, so all runs have the same one.
    place = ("--workspace", workspace)
    if not recording.exists():
        say(f"{agent}: recording {options.tasks} sessions")
        solver = ("--reference-solver", "--concurrency", options.concurrency, "--traces", recording)
        _call("agentspec.workflows.swe", "run", "--tasks", tasks, "--agent", agent, *place, *solver)
    say(f"{agent}: plain SGLang and agentspec in turns")
    _call(
        "agentspec",
        *("ab", "--workload", agent, "--options", f"--tasks {tasks} --workspace {workspace}"),
        *("--tasks", options.tasks, "--concurrency", options.concurrency, "--start", MODEL_FOLDER, "--together"),
        *("--server-args", _SERVER_ARGUMENTS, "--out", folder / "ab", "--keep-files"),
        variables={**_VARIABLES, "AGENTSPEC_REPLAY": str(recording)},
    )
    facts = json.loads((folder / "ab" / "ab.json").read_text(encoding="utf-8"))
    return {"agent": agent, **_identity(recording, folder / "ab"), **_figures(facts)}


def _call(module: str, *words: object, variables: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-P", "-m", module, *map(str, words)]
    # 1 says that tasks were not solved, which the figures tell.
    status = subprocess.run(command, env={**os.environ, **(variables or {})}, check=False).returncode
    if status not in (0, 1):
        raise ConfigError(f"{module} {words[0]} failed with status {status}; its reason is above")


def _identity(recording: Path, out: Path) -> dict[str, Any]:
    """How many tasks have the recorded conversation on both servers."""
    recorded = _conversations(recording)
    found: dict[str, dict[str, Any]] = {"a": {}, "b": {}}
    for label, conversations in found.items():
        for path in sorted(out.glob(f"repeat-*/slice-*-{label}/traces.jsonl")):
            conversations.update(_conversations(path))
    same = {label: {task for task, said in found[label].items() if said == recorded[task]} for label in found}
    return {
        "tasks": len(recorded),
        "identical": len(same["a"] & same["b"]),
        "identical_a": len(same["a"]),
        "identical_b": len(same["b"]),
        "messages": sum(map(len, recorded.values())),
    }


def _conversations(path: Path) -> dict[str, list[dict[str, Any]]]:
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {record["task"]: record["messages"] for record in records}


def _figures(facts: dict[str, Any]) -> dict[str, Any]:
    rows = {row["key"]: row for row in facts["figures"]}
    kept = ("a", "b", "ratio", "low", "high")
    return {
        "failed": sum(facts["arms"][label]["failed_tasks"] for label in ("a", "b")),
        "resolved": facts["success"] and [facts["success"]["a"], facts["success"]["b"]],
        "answers": {key: facts["answers"][key] for key in ("compared", "identical", "only_a", "only_b")},
        **{
            key: {name: rows[key][name] for name in kept}
            for key in ("wall", "model", "tools", "framework", "speed", "accept", "calls", "tokens")
            if key in rows
        },
    }


if __name__ == "__main__":
    sys.exit(main())
