"""Configuration: read by the agents' own loaders, or compared with the fields that they publish."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from every import every
from programs import output_of

from agentspec.errors import ConfigError
from agentspec.workflows.swe.__main__ import main
from agentspec.workflows.swe.agents.agent_config import agent_config
from agentspec.workflows.swe.endpoint import Endpoint

# Fields of `openhands.sdk.llm.LLM` in openhands-sdk 1.34.0 and 1.58.2, except that the capabilities exist only since
# 1.40.0. Both releases ignore unknown names, so that a wrong name would go unnoticed.
OPENHANDS_FIELDS = {
    "usage_id": str,
    "model": str,
    "base_url": str,
    "api_key": str,
    "temperature": float,
    "timeout": int,
    "num_retries": int,
    "drop_params": bool,
    "input_cost_per_token": float,
    "output_cost_per_token": float,
    "native_tool_calling": bool,
    "caching_prompt": bool,
    "capability_overrides": dict,
    "max_output_tokens": int,
    "litellm_extra_body": dict,
    "log_completions": bool,
    "log_completions_folder": str,
}

_LOAD = """
import json, sys
from minisweagent.config import get_config_from_spec
from minisweagent.utils.serialize import recursive_merge
from minisweagent.agents.default import AgentConfig
from minisweagent.models import _MODEL_CLASS_MAPPING
config = recursive_merge(get_config_from_spec(sys.argv[1]), get_config_from_spec(sys.argv[2]))
agent = AgentConfig(**config["agent"])
assert config["model"]["model_class"] in _MODEL_CLASS_MAPPING
print(json.dumps([config["model"], agent.step_limit, agent.cost_limit, agent.instance_template[:20]]))
"""


@pytest.mark.parametrize("tool_calls", [False, True])
@pytest.mark.agents
def test_mini_swe_agent_reads_its_configuration(tool_calls: bool, agent_environment: str, tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    flags = ["--tool-calls"] if tool_calls else []
    url = "http://gpu-1:30000/v1"
    command = ["config", "mini-swe-agent", "--base-url", url, "--model", "org/Coder-8B", "--out", str(path), *flags]
    assert main([*command, "--tenant", 'team "a": b', "--temperature", "0.00001", "--max-tokens", "900"]) == 0
    environment = {**os.environ, "MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": str(tmp_path)}
    base = "swebench.yaml" if tool_calls else "swebench_backticks.yaml"
    told = output_of(agent_environment, "-P", "-c", _LOAD, base, path, env=environment)
    model, step_limit, cost_limit, template = json.loads(told)
    assert model["model_name"] == "openai/org/Coder-8B"
    assert model["model_class"] == ("litellm" if tool_calls else "litellm_textbased")
    assert model["cost_tracking"] == "ignore_errors"
    # The package's own file for tool calls sets one more argument.
    model["model_kwargs"].pop("parallel_tool_calls", None)
    assert model["model_kwargs"] == {
        "api_base": url,
        "api_key": "EMPTY",
        "temperature": 0.00001,
        "timeout": 600,
        "max_retries": 2,
        "drop_params": True,
        "max_tokens": 900,
        "extra_body": {"cache_salt": 'team "a": b'},
    }
    assert model["observation_template"] and template
    assert (step_limit, cost_limit) == (250, 0)


def test_openhands_configuration_has_published_fields(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "llm.json"
    command = ["config", "openhands", "--base-url", "http://h:1/v1", "--model", "m", "--out", str(path)]
    assert main([*command, "--tenant", "t", "--max-tokens", "9", "--log-folder", "logs"]) == 0
    config = json.loads(path.read_text())
    assert config.keys() == OPENHANDS_FIELDS.keys()
    for name, value in config.items():
        assert isinstance(value, OPENHANDS_FIELDS[name]), name
    assert config["model"] == "openai/m" and config["litellm_extra_body"] == {"cache_salt": "t"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_not_set_is_left_out() -> None:
    endpoint = Endpoint(base_url="https://h/v1", model="m", api_key="")
    for agent in ("mini-swe-agent", "openhands"):
        text = agent_config(agent, endpoint)
        assert not any(word in text for word in ("api_key", "salt", "max_tokens", "max_output", "log_"))


@every(
    ("settings", "error"),
    [
        ({"base_url": "localhost:30000"}, "like http://host:30000/v1"),
        ({"model": ""}, "model's name is required"),
        ({"temperature": -1.0}, "from 0 to 2"),
        ({"timeout_s": 0}, "at least"),
        ({"retries": -1}, "at least"),
    ],
)
def test_bad_endpoints_are_refused(settings: dict[str, object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        Endpoint(**{"base_url": "http://h/v1", "model": "m", **settings})  # type: ignore[arg-type]


def test_unknown_agents_are_told_the_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--base-url", "http://h/v1", "--model", "m", "--out", str(tmp_path / "c")]
    assert main(["config", "aider", *flags]) == 2
    assert "mini-swe-agent, openhands" in capsys.readouterr().err
    assert main(["config", "openhands", *flags[:-1], "/proc/no/file"]) == 2
    assert "cannot write" in capsys.readouterr().err
