"""Workloads that are commands: one process for each task, or one for a slice of tasks."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentspec.ab.workload import Target, TaskResult, filled, read_results
from agentspec.errors import ConfigError

_SHOWN = 300
# The exit statuses of a command that has done its work: 1 says that tasks failed.
_DONE = (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCommand:
    """Runs a command once for each task. The task succeeds if the command exits with 0.

    Args:
        template: The command; `{url}`, `{model}`, `{task}`, `{seed}` and `{folder}` are replaced in it.
        concurrency: Number of processes at a time.
        timeout_s: Seconds after which a process is killed.
        seed: The value of `{seed}`, the same for both servers.
    """

    template: str
    tasks: Sequence[str]
    concurrency: int = 1
    timeout_s: float = 3600.0
    seed: int = 0
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if "{url}" not in self.template:
            raise ConfigError(
                f"a command must take the server's base URL where it says {{url}}, got {self.template!r}; for example "
                "'python my_agent.py --base-url {url}'"
            )
        filled(self.template, {})

    def describe(self) -> dict[str, Any]:
        return {"command": self.template, "tasks": len(self.tasks), "seed": self.seed, "concurrency": self.concurrency}

    def run(self, start: int, count: int, target: Target) -> list[TaskResult]:
        done, running = 0, set[int]()

        def one(task: str) -> TaskResult:
            nonlocal done
            values = {"url": target.base_url(task), "model": target.model, "task": task, "seed": self.seed}
            folder = target.folder / f"task-{self.tasks.index(task)}"
            folder.mkdir()
            result = run_process(
                filled(self.template, {**values, "folder": folder}), folder / "output.txt", self.timeout_s, running
            )
            done += 1
            target.say(done)
            error = result.problem if result.status is None else ""
            success = None if error else result.status == 0
            return TaskResult(task=task, seconds=result.seconds, success=success, error=error)

        with ThreadPoolExecutor(self.concurrency) as pool:
            try:
                return list(pool.map(one, self.tasks[start : start + count]))
            except BaseException:
                # The pool waits for its tasks, also where this process was told to stop.
                for pid in list(running):
                    _kill_group(pid)
                raise


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceCommand:
    """Runs a command for a slice of tasks. The command writes a result for each task to `{out}`.

    Args:
        template: The command; `{url}`, `{model}`, `{skip}`, `{limit}`, `{end}`, `{out}`, `{folder}`, `{seed}` and
            `{concurrency}` are replaced in it.
        count: Number of tasks at most; a slice may return fewer at the end.
        concurrency: The value of `{concurrency}`.
        timeout_s: Seconds that a task may take. The process is killed after these seconds for each task of the slice.
        seed: The value of `{seed}`, the same for both servers.
        notes: What the workload could not do as it should.
        out: The name of the file or folder `{out}`.
    """

    template: str
    count: int
    concurrency: int = 1
    timeout_s: float = 3600.0
    seed: int = 0
    notes: Sequence[str] = ()
    out: str = "results"

    def __post_init__(self) -> None:
        missing = [name for name in ("{url}", "{skip}", "{out}") if name not in self.template]
        if missing or ("{limit}" not in self.template and "{end}" not in self.template):
            raise ConfigError(
                f"the command of a slice must say {{url}}, {{skip}}, {{out}}, and {{limit}} or {{end}}; got "
                f"{self.template!r}"
            )

    @property
    def tasks(self) -> Sequence[str]:
        return [str(number) for number in range(self.count)]

    def describe(self) -> dict[str, Any]:
        # The interpreter's folder may be private.
        shown = self.template.replace(shlex.quote(sys.executable), "python")
        return {"command": shown, "tasks": self.count, "seed": self.seed, "concurrency": self.concurrency}

    def run(self, start: int, count: int, target: Target) -> list[TaskResult]:
        out = target.folder / self.out
        values = {
            "url": target.base_url(""),
            "model": target.model,
            "skip": start,
            "limit": count,
            "end": start + count,
            "out": out,
            "folder": target.folder,
            "seed": self.seed,
            "concurrency": self.concurrency,
        }
        result = run_process(filled(self.template, values), target.folder / "output.txt", self.timeout_s * count)
        if result.status not in _DONE:
            raise ConfigError(f"the workload's command failed: {result.problem}")
        results = read_results(out)
        target.say(len(results))
        return results


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a process ended. `status` is None if it could not be started or was killed."""

    status: int | None
    seconds: float
    problem: str


def run_process(words: Sequence[str], output: Path, timeout_s: float, running: set[int] | None = None) -> ProcessResult:
    """Runs a command to its end. What it prints goes to the file `output`, and it reads nothing. `running`: the groups of
    processes that run, to which its own belongs meanwhile.

    OPENAI_API_KEY is set to "none" if it is not set, because the proxy knows the key and clients insist on one.
    """
    variables = {"OPENAI_API_KEY": "none", **os.environ}
    began = time.monotonic()
    with output.open("wb") as log:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,
            )
        except OSError as error:
            return ProcessResult(None, 0.0, f"{words[0]} cannot be run: {error}")
        problem = ""
        running = set() if running is None else running
        running.add(process.pid)
        try:
            status: int | None = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            status, problem = None, f"killed after {timeout_s:g} s"
        finally:
            # The command may have left processes of its own, also where this one is interrupted.
            _kill_group(process.pid)
            process.wait()
            running.discard(process.pid)
    seconds = time.monotonic() - began
    if status:
        problem = f"exit status {status}; its output ends with: {_tail(output)}"
    return ProcessResult(status, seconds, problem)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _tail(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    return text[-_SHOWN:] if text else "(nothing)"
