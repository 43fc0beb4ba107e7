"""Coding agents against a served model: configuration, local tasks, runs, and a reference solver."""

from __future__ import annotations

from agentspec.workflows.swe.agents.agent_config import AGENTS, agent_config
from agentspec.workflows.swe.endpoint import Endpoint
from agentspec.workflows.swe.tasks import SPLITS, Task, draw_tasks, read_tasks, write_tasks

__all__ = ["AGENTS", "SPLITS", "Endpoint", "Task", "agent_config", "draw_tasks", "read_tasks", "write_tasks"]
