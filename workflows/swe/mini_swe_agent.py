"""Runs mini-swe-agent on tasks; a program of its own, for the environment that the agent is installed in.

It imports the standard library and the agent only. On its standard input it takes one JSON object,

    {"config": {...}, "tool_calls": false, "concurrency": 4,
     "tasks": [{"id", "folder", "issue", "trajectory", "extra_body"}, ...]}

and for every task that ends it writes a line of JSON to its standard output; everything that others print goes to
the standard error. The configuration is merged over the package's own for SWE-bench.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def main() -> int:
    """Works on all tasks; returns 3 where mini-swe-agent cannot be imported."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        from minisweagent.config import get_config_from_spec
        from minisweagent.models import get_model_class
        from minisweagent.utils.serialize import recursive_merge
    except ImportError as error:
        print(f"mini-swe-agent cannot be imported by {sys.executable}: {error}", file=sys.stderr)
        return 3
    job = json.load(sys.stdin)
    base = get_config_from_spec("swebench.yaml" if job["tool_calls"] else "swebench_backticks.yaml")
    config = recursive_merge(base, job["config"])
    # The container's path; here each task has a folder of its own.
    config["agent"]["instance_template"] = config["agent"]["instance_template"].replace(
        "in /testbed (", "in the current directory ("
    )
    config["environment"].pop("interpreter", None)
    # It takes seconds to import the client, which are none of a task's.
    get_model_class("", config["model"]["model_class"])
    with ThreadPoolExecutor(job["concurrency"]) as pool:
        for _ in pool.map(lambda task: _finish(answers, _work(config, task)), job["tasks"]):
            pass
    return 0


def _end_with(parent: int) -> None:
    """Nobody wants the results of an agent whose parent was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _finish(answers: Any, result: dict[str, Any]) -> None:
    # One write of one line: threads share the stream.
    answers.write(json.dumps(result) + "\n")
    answers.flush()


def _work(base: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    """Runs the agent's loop on one task; errors are part of the result."""
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments import get_environment
    from minisweagent.models import get_model

    config = copy.deepcopy(base)
    config["environment"]["cwd"] = task["folder"]
    if task["extra_body"]:
        config["model"]["model_kwargs"]["extra_body"] = task["extra_body"]
    seconds = {"model": 0.0, "command": 0.0}
    start, agent, error = time.perf_counter(), None, ""
    try:
        model = get_model(config=config["model"])
        environment = get_environment(config["environment"])
        for name, target, method in (("model", model, "query"), ("command", environment, "execute")):
            setattr(target, method, _timed(getattr(target, method), seconds, name))
        agent = DefaultAgent(model, environment, output_path=Path(task["trajectory"]), **config["agent"])
        agent.run(task["issue"])
    except Exception as failure:  # noqa: BLE001 - whatever fails is this task's result
        error = f"{type(failure).__name__}: {failure}"
    messages = agent.messages if agent is not None else []
    last = messages[-1].get("extra", {}) if messages else {}
    usage = [_usage(message) for message in messages]
    return {
        "id": task["id"],
        "exit_status": last.get("exit_status", ""),
        "error": error,
        "steps": agent.n_calls if agent is not None else 0,
        "prompt_tokens": sum(one.get("prompt_tokens") or 0 for one in usage),
        "completion_tokens": sum(one.get("completion_tokens") or 0 for one in usage),
        "seconds": time.perf_counter() - start,
        "model_seconds": seconds["model"],
        "command_seconds": seconds["command"],
    }


def _timed(function: Any, seconds: dict[str, float], name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[name] += time.perf_counter() - start

    return call


def _usage(message: dict[str, Any]) -> dict[str, Any]:
    """What the server counted; answers that could not be read as a command count as well."""
    response = message.get("extra", {}).get("response")
    return (response.get("usage") or {}) if isinstance(response, dict) else {}


if __name__ == "__main__":
    sys.exit(main())
