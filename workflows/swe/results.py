"""Results of tasks: stored in a folder one by one as the tasks end, and summarised."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from agentspec.errors import ConfigError
from agentspec.record_file import RecordFile, check_settings

Outcome = Literal["resolved", "unresolved", "error"]
OUTCOMES: tuple[Outcome, ...] = ("resolved", "unresolved", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The result of one task.

    Attributes:
        outcome: "resolved": submitted, and all tests pass. "error": the model or the agent failed, and a resumed run
            tries the task again. "unresolved": anything else.
        exit_status: The agent's own name for how it ended, such as Submitted or LimitsExceeded.
        detail: Why the task is not resolved.
        steps: Number of calls of the model.
        prompt_tokens: Prompt tokens over all calls, as counted by the server.
        completion_tokens: Completion tokens over all calls, as counted by the server.
        seconds: Seconds from the first call to the end of the agent's loop, without the tests.
        model_seconds: The part of `seconds` spent waiting for the model.
        command_seconds: The part of `seconds` spent running the agent's commands.
    """

    id: str
    repository: str
    split: str
    outcome: Outcome
    exit_status: str
    detail: str
    steps: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    model_seconds: float
    command_seconds: float


def summary(results: Sequence[TaskResult], wall_seconds: float) -> dict[str, Any]:
    """Figures of a run. Shares refer to the tasks' own seconds, which overlap if several tasks run at a time."""
    seconds = sum(result.seconds for result in results)
    model = sum(result.model_seconds for result in results)
    command = sum(result.command_seconds for result in results)
    return {
        "tasks": len(results),
        **{outcome: sum(result.outcome == outcome for result in results) for outcome in OUTCOMES},
        "steps": sum(result.steps for result in results),
        "prompt_tokens": sum(result.prompt_tokens for result in results),
        "completion_tokens": sum(result.completion_tokens for result in results),
        "wall_seconds": wall_seconds,
        "task_seconds": seconds,
        "model_share": model / seconds if seconds else 0.0,
        "command_share": command / seconds if seconds else 0.0,
        "outside_model_share": 1 - model / seconds if seconds else 0.0,
    }


class RunFolder:
    """A folder of trajectories and results, from which an interrupted run continues.

    All files except trajectories have names that begin with a dot, because readers of logs skip such files. Raises
    ConfigError if the folder holds a run with other settings, or cannot be written.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self._results = RecordFile(folder / ".results.jsonl")
        check_settings(folder / ".settings.json", settings, "--trajectories")

    def trajectory(self, task_id: str) -> Path:
        return self.folder / task_id / f"{task_id}.traj.json"

    def done(self) -> dict[str, TaskResult]:
        """Results so far by task, the latest of each, without those that ended in errors."""
        found = {result.id: result for result in self._results.read(lambda record: TaskResult(**record))}
        return {name: result for name, result in found.items() if result.outcome != "error"}

    def add(self, result: TaskResult) -> None:
        """Stores a result durably."""
        self._results.append(asdict(result))

    def write_traces(self, path: Path, task_ids: Sequence[str], run: str, model: str) -> None:
        """Writes the conversations, one task per line, to a file that `agentspec replay` and `tune` read, without
        timestamps and other notes of the agent beside the messages. Raises ConfigError if the file cannot be
        written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                for task_id in task_ids:
                    try:
                        trajectory = json.loads(self.trajectory(task_id).read_text(encoding="utf-8"))
                    except (FileNotFoundError, ValueError):
                        # The agent failed before its first step.
                        continue
                    record = {"session": f"{run}/{task_id}", "task": task_id, "run": run, "model": model}
                    file.write(json.dumps({**record, "messages": conversation(trajectory)}) + "\n")
        except OSError as error:
            raise ConfigError(f"cannot write the traces {path}: {error}") from error


def conversation(trajectory: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a trajectory as the model's server saw them, without the agent's final note."""
    kept = ("role", "content", "tool_calls", "tool_call_id")
    return [
        {key: message[key] for key in kept if message.get(key) is not None}
        for message in trajectory.get("messages", [])
        if message.get("role") in ("system", "user", "assistant", "tool")
    ]
