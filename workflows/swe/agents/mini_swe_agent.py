"""Runs mini-swe-agent on a task, for agent_program.py.

It reads these keys of the job: `config`, which is merged over the package's own for SWE-bench, and `tool_calls`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any


def worker(job: dict[str, Any]) -> Callable[[dict[str, Any], Any], None]:
    """Returns the function that works on one task. Raises ImportError if the agent is not installed."""
    from minisweagent.config import get_config_from_spec
    from minisweagent.models import get_model_class
    from minisweagent.utils.serialize import recursive_merge

    base = get_config_from_spec("swebench.yaml" if job["tool_calls"] else "swebench_backticks.yaml")
    config = recursive_merge(base, job["config"])
    # The template names the container's path, but here each task has its own folder.
    config["agent"]["instance_template"] = config["agent"]["instance_template"].replace(
        "in /testbed (", "in the current directory ("
    )
    config["environment"].pop("interpreter", None)
    # The client is imported here, because seconds of importing belong to no task.
    get_model_class("", config["model"]["model_class"])
    return lambda task, notes: _work(config, task, notes)


def _work(base: dict[str, Any], task: dict[str, Any], notes: Any) -> None:
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments import get_environment
    from minisweagent.models import get_model

    config = copy.deepcopy(base)
    config["environment"]["cwd"] = task["folder"]
    if task["extra_body"]:
        config["model"]["model_kwargs"]["extra_body"] = task["extra_body"]
    model = get_model(config=config["model"])
    environment = get_environment(config["environment"])
    model.query = notes.timed(model.query, "model_seconds")
    environment.execute = notes.timed(environment.execute, "command_seconds")
    agent = DefaultAgent(model, environment, output_path=Path(task["trajectory"]), **config["agent"])
    try:
        agent.run(task["issue"])
    finally:
        last = agent.messages[-1].get("extra", {}) if agent.messages else {}
        usage = [_usage(message) for message in agent.messages]
        notes.exit_status, notes.steps = last.get("exit_status", ""), agent.n_calls
        notes.prompt_tokens = sum(one.get("prompt_tokens") or 0 for one in usage)
        notes.completion_tokens = sum(one.get("completion_tokens") or 0 for one in usage)


def _usage(message: dict[str, Any]) -> dict[str, Any]:
    """The server's token counts. Answers that could not be read as a command count as well."""
    response = message.get("extra", {}).get("response")
    return (response.get("usage") or {}) if isinstance(response, dict) else {}
