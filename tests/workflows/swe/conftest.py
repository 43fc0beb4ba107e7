"""Drawn tasks, and the interpreters that have the agents."""

from __future__ import annotations

import pytest

from agentspec.errors import ConfigError
from agentspec.workflows.swe.agents.agent_process import agent_python
from agentspec.workflows.swe.tasks import Task, draw_tasks, read_tasks, write_tasks


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    """Five tasks of two repositories."""
    folder = tmp_path_factory.mktemp("tasks")
    write_tasks(folder, draw_tasks(seed=11, count=5))
    return read_tasks(folder)


@pytest.fixture(scope="session")
def agent_environment() -> str:
    """The interpreter that has mini-swe-agent, for tests that are marked `agents`."""
    return agent_python("mini-swe-agent")


@pytest.fixture(scope="session")
def openhands_environment() -> str:
    """The interpreter that has OpenHands, which needs a newer Python than this project. Many machines have none."""
    try:
        return agent_python("openhands")
    except ConfigError as error:
        pytest.skip(str(error))
