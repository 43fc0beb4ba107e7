"""Runs a coding agent on local tasks against a served model and lets the tasks' tests decide."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError, ServerError
from agentspec.workflows.swe.agents.agent_config import AGENTS, mini_swe_agent, openhands
from agentspec.workflows.swe.agents.agent_process import AgentProcess
from agentspec.workflows.swe.endpoint import Endpoint
from agentspec.workflows.swe.results import RunFolder, TaskResult, summary
from agentspec.workflows.swe.tasks import Task
from agentspec.workflows.swe.unit_tests import judge
from agentspec.workflows.swe.workspace import Workspace, command_environment

TENANTS_BY = ("none", "repository", "task")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """How tasks are worked on.

    Attributes:
        agent: One of AGENTS.
        concurrency: Number of tasks at a time.
        step_limit: Maximum number of model calls per task.
        time_limit_s: Maximum number of seconds per task, checked between steps.
        command_timeout_s: Seconds after which one of the agent's commands is killed.
        test_timeout_s: Seconds after which a run of tests counts as failed.
        tenants_by: The tenant of a request: the endpoint's tenant for all, or one for each repository or task.
    """

    agent: str = AGENTS[0]
    concurrency: int = 1
    step_limit: int = 40
    time_limit_s: int = 1800
    command_timeout_s: int = 60
    test_timeout_s: float = 60.0
    tenants_by: str = "none"

    def __post_init__(self) -> None:
        if self.agent not in AGENTS:
            raise ConfigError(f"the agent must be one of {', '.join(AGENTS)}, got {self.agent!r}")
        if self.tenants_by not in TENANTS_BY:
            raise ConfigError(f"tenants must be by one of {', '.join(TENANTS_BY)}, got {self.tenants_by!r}")
        numbers = (self.concurrency, self.step_limit, self.time_limit_s, self.command_timeout_s, self.test_timeout_s)
        if min(numbers) <= 0:
            raise ConfigError(f"concurrency, limits and timeouts must be above 0, got {numbers}")


@dataclass(frozen=True, slots=True)
class Run:
    """The results in the order of the tasks, and the number of results taken from an earlier run."""

    results: tuple[TaskResult, ...]
    resumed: int
    wall_seconds: float

    def summary(self) -> dict[str, Any]:
        """Figures of the whole run. `wall_seconds` counts only this command's part of it."""
        return summary(self.results, self.wall_seconds)


def run_tasks(
    tasks: Sequence[Task],
    endpoint: Endpoint,
    config: RunConfig,
    *,
    python: str,
    workspace: Path,
    trajectories: Path | None = None,
    traces: Path | None = None,
    answered_by: str = "model",
    progress: Callable[[TaskResult, int, int], None] | None = None,
) -> Run:
    """Works on every task that is not done yet. Raises ConfigError if the workspace or the folder cannot be used, and
    ServerError if the server does not answer, or the agent's process failed.

    Args:
        endpoint: The server. It is asked for its models first.
        python: The interpreter that has the agent, see `agent_python`.
        workspace: The folder with a working folder for each task, named after the task. Commands may print its path,
            so keep it the same if conversations must be the same.
        trajectories: The folder for trajectories and results. If it has results already, the run continues from them.
        traces: The file to write the conversations to, one JSON object per line.
        answered_by: Noted in the settings and traces: "model", or the name of a stand-in.
        progress: Called with each result, the number of results so far, and the number of all tasks.
    """
    endpoint.check()
    start = time.monotonic()
    with ExitStack() as stack:
        place = stack.enter_context(Workspace(workspace))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentspec-swe-agent-")))
        folder = RunFolder(trajectories or scratch / "run", _settings(endpoint, config, answered_by))
        found = folder.done()
        done = {task.id: found[task.id] for task in tasks if task.id in found}
        resumed = len(done)
        open_tasks = {task.id: task for task in tasks if task.id not in done}
        job = {
            **_agent_settings(endpoint, config),
            "concurrency": config.concurrency,
            "tasks": [_order(task, endpoint, config, place, folder) for task in open_tasks.values()],
        }
        # The longest time of one task: its limit, plus a call or command in progress at the limit.
        silence = config.time_limit_s + endpoint.timeout_s * (endpoint.retries + 1) + config.command_timeout_s + 120
        if open_tasks:
            agent = stack.enter_context(AgentProcess(python, job, scratch))
            for raw in agent.results(silence):
                task = open_tasks[raw["id"]]
                result = _result(task, raw, place.folder / task.id, config)
                folder.add(result)
                done[task.id] = result
                place.remove(task)
                if progress is not None:
                    progress(result, len(done), len(tasks))
        missing = [task.id for task in tasks if task.id not in done]
        if missing:
            raise ServerError(f"the agent ended without a word on {len(missing)} tasks, the first {missing[0]}")
        if traces is not None:
            folder.write_traces(traces, [task.id for task in tasks], answered_by, endpoint.model)
    return Run(tuple(done[task.id] for task in tasks), resumed, time.monotonic() - start)


def _settings(endpoint: Endpoint, config: RunConfig, answered_by: str) -> dict[str, Any]:
    """The settings that must not change when a run continues. The server's address and the concurrency may change."""
    kept = {key: value for key, value in asdict(endpoint).items() if key not in ("base_url", "api_key")}
    limits = {key: value for key, value in asdict(config).items() if key != "concurrency"}
    return {"answered_by": answered_by, "endpoint": kept, "config": limits}


def _agent_settings(endpoint: Endpoint, config: RunConfig) -> dict[str, Any]:
    """The keys of the job that the agent's file beside agent_program.py reads."""
    if config.agent == "openhands":
        return {
            "agent": "openhands_agent",
            "config": openhands(endpoint, ""),
            "environment": command_environment(),
            "step_limit": config.step_limit,
            "time_limit_s": config.time_limit_s,
            "command_timeout_s": config.command_timeout_s,
        }
    settings = mini_swe_agent(endpoint, config.step_limit)
    settings["agent"]["wall_time_limit_seconds"] = config.time_limit_s
    settings["environment"] = {
        "environment_class": "local",
        "timeout": config.command_timeout_s,
        "env": command_environment(),
    }
    return {"agent": "mini_swe_agent", "config": settings, "tool_calls": endpoint.tool_calls}


def _order(task: Task, endpoint: Endpoint, config: RunConfig, place: Workspace, folder: RunFolder) -> dict[str, Any]:
    parts = [endpoint.tenant, {"repository": task.repository, "task": task.id}.get(config.tenants_by, "")]
    tenant = "/".join(part for part in parts if part)
    return {
        "id": task.id,
        "folder": str(place.prepare(task)),
        "issue": task.issue,
        "trajectory": str(folder.trajectory(task.id).resolve()),
        "extra_body": {"cache_salt": tenant} if tenant else {},
    }


def _result(task: Task, raw: Mapping[str, Any], folder: Path, config: RunConfig) -> TaskResult:
    """The result of a task. The tests run only if the agent has submitted; otherwise the task is not solved."""
    if raw["error"]:
        outcome, detail = "error", str(raw["error"])[:500]
    elif raw["exit_status"] != "Submitted":
        outcome, detail = "unresolved", f"the agent ended with {raw['exit_status'] or 'nothing'}"
    else:
        verdict = judge(task, folder, config.test_timeout_s)
        outcome, detail = ("resolved" if verdict.passed else "unresolved"), verdict.detail
    return TaskResult(
        repository=task.repository,
        split=task.split,
        outcome=outcome,  # type: ignore[arg-type]
        detail=detail,
        **{name: value for name, value in raw.items() if name != "error"},
    )


def print_progress(result: TaskResult, number: int, total: int) -> None:
    """Prints one line to the standard error when a task ends."""
    detail = f": {result.detail.splitlines()[0]}" if result.detail else ""
    print(
        f"[{number}/{total}] {result.id} {result.outcome} in {result.steps} steps, {result.seconds:.1f} s{detail}",
        file=sys.stderr,
        flush=True,
    )
