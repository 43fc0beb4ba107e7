"""Runs an agent as a process in the environment where it is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from agentspec.errors import ConfigError, ServerError
from agentspec.workflows.swe.workspace import own_environment

ENVIRONMENT_VARIABLE = "AGENTSPEC_AGENT_PYTHON"
_HERE = Path(__file__).resolve().parent
_PROGRAM = _HERE / "agent_program.py"
_LOG_TAIL = 2000


@dataclass(frozen=True, slots=True)
class _Installation:
    """How to find an agent, and how to install it."""

    module: str
    extra: str
    target: str
    """The target of make that installs the agent into the folder .venv-TARGET."""
    needs: str = ""

    def told(self) -> str:
        return (
            f"{self.needs}`pip install 'sglang-agentspec[{self.extra}]'` in an environment of its own and name its interpreter "
            f"with --agent-python or {ENVIRONMENT_VARIABLE}, or run `make {self.target}` in the sources"
        )


_INSTALLATIONS = {
    "mini-swe-agent": _Installation("minisweagent", "swe", "agents"),
    "openhands": _Installation("openhands.tools", "openhands", "openhands", "it needs Python 3.12 or newer: "),
}


def agent_python(agent: str, given: str = "") -> str:
    """The interpreter that has the agent.

    It is the first that exists of: `given`, the variable AGENTSPEC_AGENT_PYTHON, this interpreter, and the interpreter
    that `make agents` or `make openhands` installed in the current directory or beside the sources. Raises ConfigError
    if there is none; the message says how to install the agent.
    """
    chosen = given or os.environ.get(ENVIRONMENT_VARIABLE, "")
    if chosen:
        if not os.access(chosen, os.X_OK):
            raise ConfigError(f"the agent's Python must be an executable file, got {chosen!r}")
        return chosen
    installation = _INSTALLATIONS[agent]
    if _is_here(installation.module):
        return sys.executable
    for root in (Path.cwd(), _HERE.parents[2]):
        python = root / f".venv-{installation.target}" / "bin" / "python"
        if python.exists():
            return str(python)
    raise ConfigError(f"{agent} is not installed here: {installation.told()}")


def _is_here(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _children(pid: int) -> list[int]:
    """The running child processes of a process."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(word) for thread in threads for word in (thread / "children").read_text().split()]
    except (OSError, ValueError):
        return []


class AgentProcess:
    """One run of an agent over the tasks of the job that `agent_program.py` reads. Leaving the context kills it with
    all its commands. `folder` has its log and its own settings."""

    def __init__(self, python: str, job: dict[str, Any], folder: Path) -> None:
        self._log = folder / "agent.log"
        environment = {
            **own_environment(),
            # The run does not use the user's own settings of the agent.
            "MSWEA_GLOBAL_CONFIG_DIR": str(folder / "settings"),
            **({"HOME": str(folder)} if job["agent"] == "openhands_agent" else {}),
            "MSWEA_SILENT_STARTUP": "1",
            # The model's client tries again by itself.
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
            # Without this, the client fetches a list of prices when it is imported.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-P", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._job = json.dumps(job)
        for target in (self._feed, self._read):
            threading.Thread(target=target, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            # The agent's commands have their own process groups, so they are found as children of the agent.
            for pid in [*_children(self._process.pid), self._process.pid]:
                try:
                    os.killpg(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def results(self, silence_s: float) -> Iterator[dict[str, Any]]:
        """Yields the result of each task when it ends, in the order in which the tasks end. Raises ServerError if the
        agent failed before all tasks ended, or no task ended for `silence_s` seconds."""
        while True:
            try:
                line = self._lines.get(timeout=silence_s)
            except queue.Empty:
                raise ServerError(f"the agent has finished no task for {silence_s:g} s{self._said()}") from None
            if line is None:
                status = self._process.wait()
                if status:
                    raise ServerError(f"the agent's process ended with status {status}{self._said()}")
                return
            yield json.loads(line)

    def _said(self) -> str:
        try:
            tail = self._log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:].strip()
        except OSError:
            return ""
        return f"; its log ends with:\n{tail}" if tail else ""

    def _feed(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(self._job)
            self._process.stdin.close()
        except OSError:
            pass  # The process ended before it read its job; `results` reports that.

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)
