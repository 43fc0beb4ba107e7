"""Runs a coding agent on tasks; a program of its own, for the environment that the agent is installed in.

It imports the standard library and, beside it, the file of the agent that the job names. On its standard input it takes
one JSON object,

    {"agent": "mini_swe_agent", "config": {...}, "concurrency": 4, ...,
     "tasks": [{"id", "folder", "issue", "trajectory", "extra_body"}, ...]}

and for every task that ends it writes a line of JSON to its standard output; everything that others print goes to the
standard error. What else a job has, each agent's file says; its function `worker` takes the job and gives what does one
task: it notes in a `Notes` what becomes of it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Notes:
    """What is known of a task; what an agent has noted counts even if it fails then."""

    exit_status: str = ""
    """The agent's own word for how it ended."""
    steps: int = 0
    """Calls of the model."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model_seconds: float = 0.0
    command_seconds: float = 0.0

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function, whose seconds are added to those of this name."""

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                setattr(self, name, getattr(self, name) + time.perf_counter() - start)

        return call


def main() -> int:
    """Works on all tasks; returns 3 where the agent cannot be imported."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    job = json.load(sys.stdin)
    try:
        work = _agent(job["agent"]).worker(job)
    except ImportError as error:
        print(f"{job['agent']} cannot be imported by {sys.executable}: {error}", file=sys.stderr)
        return 3
    with ThreadPoolExecutor(job["concurrency"]) as pool:
        for _ in pool.map(lambda task: _finish(answers, _result(work, task)), job["tasks"]):
            pass
    return 0


def _agent(name: str) -> Any:
    """The module in the file of this name beside this one."""
    spec = importlib.util.spec_from_file_location(f"agentspec_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _end_with(parent: int) -> None:
    """Nobody wants the results of an agent whose parent was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _finish(answers: Any, result: dict[str, Any]) -> None:
    # One write of one line: threads share the stream.
    answers.write(json.dumps(result) + "\n")
    answers.flush()


def _result(work: Callable[[dict[str, Any], Notes], None], task: dict[str, Any]) -> dict[str, Any]:
    """What became of one task; errors are part of it."""
    notes, error, start = Notes(), "", time.perf_counter()
    try:
        work(task, notes)
    except Exception as failure:  # noqa: BLE001 - whatever fails is this task's result
        error = f"{type(failure).__name__}: {failure}"
    return {"id": task["id"], "error": error, "seconds": time.perf_counter() - start, **asdict(notes)}


if __name__ == "__main__":
    sys.exit(main())
