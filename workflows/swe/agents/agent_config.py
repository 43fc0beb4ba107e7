"""Configuration of coding agents, in the agents' own formats.

mini-swe-agent 2.4.6 merges several `-c` files. The file written here comes after the package's own benchmark file and
changes only the model and the limits. OpenHands reads the fields of its SDK's class `LLM` (1.34 to 1.58) from a JSON
file, as do `openhands-sdk` and the `swebench-infer` of OpenHands/benchmarks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml

from agentspec.errors import ConfigError
from agentspec.workflows.swe.endpoint import Endpoint

AGENTS = ("mini-swe-agent", "openhands")


def agent_config(agent: str, endpoint: Endpoint, *, step_limit: int = 250, log_folder: str = "") -> str:
    """The text of the configuration file of one of AGENTS. OpenHands takes `step_limit` as a flag instead, and logs
    every call as a JSON file in `log_folder`; mini-swe-agent always keeps trajectories. Raises ConfigError if the
    agent is unknown."""
    if agent == "mini-swe-agent":
        text: str = yaml.safe_dump(mini_swe_agent(endpoint, step_limit), sort_keys=False)
        return text
    if agent == "openhands":
        return json.dumps(openhands(endpoint, log_folder), indent=2) + "\n"
    raise ConfigError(f"the agent must be one of {', '.join(AGENTS)}, got {agent!r}")


def mini_swe_agent(endpoint: Endpoint, step_limit: int) -> dict[str, Any]:
    """Settings to merge over the package's `swebench_backticks.yaml`, or over `swebench.yaml` for tool calls."""
    if step_limit < 1:
        raise ConfigError(f"the limit on steps must be at least 1, got {step_limit}")
    kwargs: dict[str, Any] = {
        "api_base": endpoint.base_url,
        **({"api_key": endpoint.api_key} if endpoint.api_key else {}),
        "temperature": endpoint.temperature,
        "timeout": endpoint.timeout_s,
        # This sets only the OpenAI client's retries. litellm's `num_retries` would multiply them.
        "max_retries": endpoint.retries,
        "drop_params": True,
    }
    if endpoint.max_tokens:
        kwargs["max_tokens"] = endpoint.max_tokens
    if endpoint.tenant:
        kwargs["extra_body"] = {"cache_salt": endpoint.tenant}
    return {
        "model": {
            "model_class": "litellm" if endpoint.tool_calls else "litellm_textbased",
            # The prefix names litellm's provider for any server with OpenAI's API.
            "model_name": f"openai/{endpoint.model}",
            # A served model has no price. Without this setting the agent stops at its first call.
            "cost_tracking": "ignore_errors",
            "model_kwargs": kwargs,
        },
        "agent": {"step_limit": step_limit, "cost_limit": 0.0},
    }


def openhands(endpoint: Endpoint, log_folder: str) -> dict[str, Any]:
    """Fields of the OpenHands SDK's `LLM`."""
    config: dict[str, Any] = {
        "usage_id": "agent",
        "model": f"openai/{endpoint.model}",
        "base_url": endpoint.base_url,
        **({"api_key": endpoint.api_key} if endpoint.api_key else {}),
        "temperature": endpoint.temperature,
        "timeout": endpoint.timeout_s,
        "num_retries": endpoint.retries,
        "drop_params": True,
        # With prices of zero, the SDK does not look up the model's prices.
        "input_cost_per_token": 0.0,
        "output_cost_per_token": 0.0,
        # If False, tools are described in the prompt and calls are read from the text.
        "native_tool_calling": endpoint.tool_calls,
        # Caching marks are for Anthropic's servers only.
        "caching_prompt": False,
        # The SDK assumes that a model with an unknown name reasons, and then omits the temperature.
        "capability_overrides": {"supports_reasoning_effort": False, "supports_sampling_params": True},
    }
    if endpoint.max_tokens:
        config["max_output_tokens"] = endpoint.max_tokens
    if endpoint.tenant:
        config["litellm_extra_body"] = {"cache_salt": endpoint.tenant}
    if log_folder:
        config |= {"log_completions": True, "log_completions_folder": log_folder}
    return config


def write_config(path: Path, text: str) -> None:
    """Writes the file so that only its owner can read it, because it may hold a key. Raises ConfigError if the file
    cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            # Opening an existing file does not change its permissions.
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write the configuration {path}: {error}; choose another --out") from error
