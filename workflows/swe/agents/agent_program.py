"""Runs a coding agent on tasks, as a separate program in the environment where the agent is installed.

It imports only the standard library and the file of the agent that the job names. It reads one JSON object from its
standard input:

    {"agent": "mini_swe_agent", "config": {...}, "concurrency": 4, ...,
     "tasks": [{"id", "folder", "issue", "trajectory", "extra_body"}, ...]}

For every task that ends, it writes a line of JSON to its standard output. All other output goes to the standard error.
The file of each agent lists the other keys of its job. Its function `worker` takes the job and returns a function that
works on one task and records the progress in a `Notes`.
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
    """What is known of a task. It stays valid if the agent fails later."""

    exit_status: str = ""
    """The agent's own name for how it ended."""
    steps: int = 0
    """Number of calls of the model."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model_seconds: float = 0.0
    command_seconds: float = 0.0

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Wraps the function so that its seconds are added to the field `name`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                setattr(self, name, getattr(self, name) + time.perf_counter() - start)

        return call


def main() -> int:
    """Works on all tasks. Returns 3 if the agent cannot be imported."""
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
    """Loads the module from the file of this name beside this one."""
    spec = importlib.util.spec_from_file_location(f"agentspec_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _end_with(parent: int) -> None:
    """Ends this process when its parent has ended, because nobody reads the results then."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _finish(answers: Any, result: dict[str, Any]) -> None:
    # Each line is written with one call, because threads share the stream.
    answers.write(json.dumps(result) + "\n")
    answers.flush()


def _result(work: Callable[[dict[str, Any], Notes], None], task: dict[str, Any]) -> dict[str, Any]:
    notes, error, start = Notes(), "", time.perf_counter()
    try:
        work(task, notes)
    except Exception as failure:  # noqa: BLE001 - any failure is this task's result
        error = f"{type(failure).__name__}: {failure}"
    return {"id": task["id"], "error": error, "seconds": time.perf_counter() - start, **asdict(notes)}


if __name__ == "__main__":
    sys.exit(main())
