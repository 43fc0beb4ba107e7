"""The tasks of `agentspec eval`: those that the served model answers itself, and recorded ones."""

from __future__ import annotations

from agentspec.evals.workloads.edits import EDITS, FORCED_EDITS
from agentspec.evals.workloads.live import LIVE
from agentspec.evals.workloads.replayed import RECORDED
from agentspec.evals.workloads.task import Task

TASKS: dict[str, Task] = {task.name: task for task in (*LIVE, EDITS, *FORCED_EDITS, *RECORDED)}

__all__ = ["TASKS", "Task"]
