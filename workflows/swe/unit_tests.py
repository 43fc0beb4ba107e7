"""Tests that decide whether a task is solved."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agentspec.workflows.swe.tasks import Task
from agentspec.workflows.swe.workspace import own_environment

HIDDEN = "hidden_tests"
# Of each run of tests of a drawn task.
_CHECK_SECONDS = 30.0

# It prints the number of tests and the failed ones. What the tests print goes nowhere, and processes that they leave
# behind do not hold the pipe. Tests that end the process tell nothing, so they have not passed.
_RUNNER = """
import json, os, sys, unittest
told = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
sys.path.insert(0, "")
result = unittest.TestResult()
unittest.defaultTestLoader.discover(sys.argv[1], top_level_dir=".").run(result)
bad = [test.id() for test, _ in result.failures + result.errors] + [test.id() for test in result.unexpectedSuccesses]
print(json.dumps([result.testsRun, len(result.skipped), bad]), file=told, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether all tests of a folder passed, and what is wrong if not."""

    passed: bool
    detail: str = ""


def run_tests(folder: Path, tests: str, timeout_s: float) -> Verdict:
    """Runs the unittest files of a folder within a repository.

    Args:
        folder: The repository.
        tests: The name of the folder of tests in it.
        timeout_s: Seconds after which the tests count as failed. All processes that they started are killed.
    """
    environment = {**own_environment(), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _RUNNER, tests],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return Verdict(False, f"{tests} took longer than {timeout_s:g} s")
    finally:
        # A process that ended by itself may have left others running, so the group is always killed.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()
    try:
        run, skipped, bad = json.loads(output)
    except (ValueError, TypeError):
        return Verdict(False, f"{tests} ended without a result, exit status {process.returncode}")
    if bad:
        return Verdict(False, f"{len(bad)} of {run} in {tests} failed, the first {bad[0]}")
    if run - skipped < 1:
        return Verdict(False, f"{tests} holds no test that ran")
    return Verdict(True)


def judge(task: Task, folder: Path, timeout_s: float) -> Verdict:
    """Whether the repository in `folder`, as an agent left it, passes the task's tests.

    The visible tests are restored first, because the agent may have changed them.
    """
    visible = task.folder / "repository" / "tests"
    for source, name in ((task.folder / HIDDEN, HIDDEN), (visible, "tests")):
        if source.is_dir():
            place = folder / name
            if place.is_symlink() or place.is_file():
                place.unlink()
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(source, place)
            (folder / name / "__init__.py").touch()
    verdict = run_tests(folder, HIDDEN, timeout_s)
    if verdict.passed and visible.is_dir():
        verdict = run_tests(folder, "tests", timeout_s)
    return verdict


def check_task(task: Task, folder: Path) -> str:
    """What is wrong with a drawn task, or "". The hidden tests must detect its bug, and its fix must repair it.

    Args:
        task: A task with a fix.
        folder: An empty folder to work in.
    """
    if task.fix is None:
        return "it has no fix to check"
    shutil.copytree(task.folder / "repository", folder, dirs_exist_ok=True)
    if not run_tests(folder, "tests", _CHECK_SECONDS).passed:
        return "the visible tests fail with the bug"
    if judge(task, folder, _CHECK_SECONDS).passed:
        return "the hidden tests pass with the bug"
    path = folder / task.fix.path
    source = path.read_text(encoding="utf-8")
    if source.count(task.fix.broken) != 1:
        return f"the place to fix is {source.count(task.fix.broken)} times in {task.fix.path}"
    path.write_text(source.replace(task.fix.broken, task.fix.fixed), encoding="utf-8")
    verdict = judge(task, folder, _CHECK_SECONDS)
    return "" if verdict.passed else f"its fix does not heal it: {verdict.detail}"
