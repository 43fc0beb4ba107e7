"""A workload: tasks that are done again and again, each time against one of the servers."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentspec.errors import ConfigError

_IDENTITY_FIELDS = ("id", "task_id", "instance_id", "session", "task")
_SUCCESSES = {"correct": True, "resolved": True, "wrong": False, "unresolved": False, "truncated": False}
"""The outcomes of agentspec's workflows. An error is a failure, and "ungraded" is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """One task, done once."""

    task: str
    seconds: float
    """Wall time."""
    model_seconds: float | None = None
    """The part of it with a call in progress; None: it follows from the recorded calls."""
    tool_seconds: float | None = None
    """The part of it in which the agent's commands ran; None where the workload does not tell."""
    success: bool | None = None
    """None where nothing decides."""
    error: str = ""
    """Why the task could not be done, as opposed to done wrongly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server that a run is for."""

    base_url: Callable[[str], str]
    """The OpenAI base URL for a task; "" for calls that no task claims."""
    model: str
    folder: Path
    """An empty folder for files of this run."""
    say: Callable[[int], object] = lambda done: None
    """Called with the number of tasks that are done."""


class Workload(Protocol):
    """Does tasks against a server."""

    @property
    def tasks(self) -> Sequence[str]:
        """The identities of all tasks, in their order."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What the workload could not do as it should."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a resumed run must have in common with the first one, as JSON."""
        ...

    def run(self, start: int, count: int, target: Target) -> list[TaskResult]:
        """Does tasks [start, start + count) and returns a result for each. Raises ConfigError if the workload cannot be
        run at all."""
        ...


def filled(template: str, values: Mapping[str, object]) -> list[str]:
    """The words of a command, with `{name}` replaced in each word. Other braces stay. Raises ConfigError if the
    template is empty or has an open quote."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise ConfigError(f"a command must be words as a shell reads them, got {template!r}: {error}") from None
    if not words:
        raise ConfigError("a command must have at least one word, got none")
    # In one pass, so that braces in a value stay.
    return [re.sub(r"\{(\w+)\}", lambda found: str(values.get(found[1], found[0])), word) for word in words]


def read_results(path: Path) -> list[TaskResult]:
    """The results that a command has written: JSON lines, a JSON list, or a JSON object with `tasks`.

    Each result names its task (`id`, `task_id`, `instance_id`, `session` or `task`) and its `seconds`. It may have
    `success`, `resolved` or `outcome`, `outside_seconds` or `model_seconds`, `command_seconds`, and `error`. Records of
    `agentspec.workflows.text_to_sql` and results of `agentspec.workflows.swe` have this form. A folder is read as one
    of trajectories of mini-swe-agent. Raises ConfigError if there is nothing at `path`, or a result lacks its task or
    seconds.
    """
    if path.is_dir():
        return [_of_trajectory(file) for file in sorted(path.rglob("*.traj.json"))]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the workload must write its results to {{out}}, {path.name}: {error}") from error
    try:
        try:
            whole = json.loads(text)
            values = whole.get("tasks", [whole]) if isinstance(whole, dict) else whole
        except ValueError:
            # Not splitlines(), which also splits at characters that JSON leaves as they are within texts, such as U+2028.
            values = [json.loads(line) for line in text.split("\n") if line.strip()]
        return [_of_record(value) for value in values]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"the results in {{out}}, {path.name}, must be JSON objects with a task and its seconds: "
            f"{type(error).__name__}: {error}"
        ) from None


def _of_record(value: Mapping[str, Any]) -> TaskResult:
    name = next((str(value[key]) for key in _IDENTITY_FIELDS if value.get(key) not in (None, "")), None)
    if name is None:
        raise KeyError(f"a task in one of {', '.join(_IDENTITY_FIELDS)}")
    seconds, outcome = float(value["seconds"]), str(value.get("outcome", ""))
    success = value.get("success", value.get("resolved", _SUCCESSES.get(outcome)))
    model, outside = value.get("model_seconds"), value.get("outside_seconds")
    if model is None and outside is not None:
        model = seconds - float(outside)
    tool = value.get("command_seconds", value.get("tool_seconds"))
    error = value.get("error") or (value.get("detail", "failed") if outcome == "error" else "")
    return TaskResult(
        task=name,
        seconds=seconds,
        model_seconds=None if model is None else float(model),
        tool_seconds=None if tool is None else float(tool),
        success=False if outcome == "error" else None if success is None else bool(success),
        error=str(error)[:300],
    )


def _of_trajectory(path: Path) -> TaskResult:
    """A trajectory's wall time reaches from its first message with a time to its last one. Its patch is not graded."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        times = [
            float(message["extra"]["timestamp"])
            for message in document["messages"]
            if isinstance(message.get("extra"), dict) and message["extra"].get("timestamp") is not None
        ]
        status = str((document.get("info") or {}).get("exit_status", ""))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"cannot read the trajectory {path.name}: {type(error).__name__}: {error}") from None
    return TaskResult(
        task=path.name.removesuffix(".traj.json"),
        seconds=max(times) - min(times) if times else 0.0,
        error="" if status in ("Submitted", "LimitsExceeded") else status,
    )
