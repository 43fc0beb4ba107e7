"""mini-swe-agent with a real model on small local tasks: `python -m agentspec.evals.run.real_coding_agents`.

Dataset: the drawn tasks of workflows/swe, a Python package with a bug each.
Metric: tasks that the hidden tests call solved; calls, tokens, accept length, tokens a second of the calls.
Pattern: one server with agentspec as shipped, which has learnt nothing; tasks one after another.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentspec.environment import describe
from agentspec.evals.files import work_folder, write_json
from agentspec.evals.options import Options, run_program
from agentspec.evals.real_models import FOLDER, SOURCES, folder_of
from agentspec.evals.systems import SYSTEMS
from agentspec.integrations.servers.server import Server
from agentspec.progress import say
from agentspec.workflows.swe.agents.agent_process import agent_python
from agentspec.workflows.swe.endpoint import Endpoint
from agentspec.workflows.swe.run import Run, RunConfig, print_progress, run_tasks
from agentspec.workflows.swe.tasks import draw_tasks, read_tasks, write_tasks

_AGENT = "mini-swe-agent"
_CALL_SECONDS = 1200
_MEMORY = ("--context-length", "16384", "--max-total-tokens", "20480", "--max-running-requests", "4")


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command line. The status is 0 however many tasks are solved, and 1 if the agent failed on one."""
    parser = argparse.ArgumentParser(
        prog="python -m agentspec.evals.run.real_coding_agents", description=(__doc__ or "").partition("\n\n")[2]
    )
    options = Options(parser)
    parser.add_argument("--model", default="1.5b", choices=sorted(SOURCES), help="parameters (default %(default)s)")
    options.folder("--models", f"folder of all models (default {FOLDER})", FOLDER)
    options.text("--dtype", "bfloat16", "type of the weights")
    options.number("--tasks", 3, "number of tasks")
    options.number("--seed", 11, "seed of the tasks")
    options.number("--step-limit", 8, "most calls of a task")
    options.number("--max-tokens", 300, "longest answer")
    options.folder("--out", "keep tasks, trajectories and the server's log in FOLDER")
    options.file("--json", "write the figures to FILE")
    return run_program(parser, _run, words)


def _run(given: argparse.Namespace) -> int:
    with work_folder(given.out) as (_, folder):
        record = _measured(given, folder.absolute())
    write_json(given.json, {"records": [record]})
    print(
        f"{record['resolved']} of {record['tasks']} tasks solved, {record['requests']} calls, {record['tokens']} tokens, "
        f"{record['accept_length']:.2f} tokens a step, {record['tokens_per_second']:.1f} tokens a second of the calls"
    )
    return int(any(result["outcome"] == "error" for result in record["results"]))


def _measured(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    tasks, model, python = folder / "tasks", folder_of(given.model, given.models), agent_python(_AGENT)
    if not tasks.exists():
        write_tasks(tasks, draw_tasks(seed=given.seed, count=given.tasks, per_repository=2))
    arguments = (*_MEMORY, "--dtype", given.dtype, "--served-model-name", model.name)
    threads = {"OMP_NUM_THREADS": str(os.cpu_count())}
    system = SYSTEMS["agentspec"]
    log = folder / "server.log"
    with Server(model, system.algorithm, log=log, arguments=arguments, environment=threads) as server:
        say(f"{system.label}, {model.name}")
        run = run_tasks(
            read_tasks(tasks),
            Endpoint(
                base_url=f"{server.url}/v1",
                model=model.name,
                max_tokens=given.max_tokens,
                timeout_s=_CALL_SECONDS,
                retries=0,
            ),
            RunConfig(step_limit=given.step_limit, time_limit_s=given.step_limit * _CALL_SECONDS),
            python=python,
            workspace=folder / "work",
            trajectories=folder / "trajectories",
            traces=folder / "traces.jsonl",
            progress=print_progress,
        )
        counters = (server.agentspec_state() or {}).get("counters", {})
    return {**_record(run, counters), **_settings(given, model)}


def _record(run: Run, counters: dict[str, Any]) -> dict[str, Any]:
    steps, accepted = counters["verify_steps"], counters["accepted_tokens"]
    model_seconds = sum(result.model_seconds for result in run.results)
    figures = run.summary()
    return {
        "task": "mini_swe_agent",
        "system": "suffix",
        "pass": "cold",
        "concurrency": 1,
        "tasks": figures["tasks"],
        "resolved": figures["resolved"],
        "requests": figures["steps"],
        "tokens": figures["completion_tokens"],
        "prompt_tokens": figures["prompt_tokens"],
        "seconds": round(model_seconds, 3),
        "tokens_per_second": round(figures["completion_tokens"] / model_seconds, 2),
        "verify_steps": steps,
        "accept_length": round(1 + accepted / steps, 4) if steps else 1.0,
        "results": [asdict(result) for result in run.results],
    }


def _settings(given: argparse.Namespace, model: Path) -> dict[str, Any]:
    kept = {"seed": given.seed, "dtype": given.dtype, "step_limit": given.step_limit, "max_tokens": given.max_tokens}
    return {**kept, "model": model.name, **describe(("agentspec", "sglang", "torch", "transformers"))}


if __name__ == "__main__":
    sys.exit(main())
