"""The tasks of `agentspec eval`, each in a file of its own."""

from __future__ import annotations

from agentspec.evals.workloads import (
    chat_mt_bench,
    math_gsm8k,
    open_chat,
    sql_intercode_spider,
    sql_rsl_bird,
    swe_mini_agent,
    text_to_sql,
    tools_tau_airline,
)
from agentspec.evals.workloads.task import Task

TASKS: dict[str, Task] = {
    module.TASK.name: module.TASK
    for module in (
        text_to_sql,
        open_chat,
        swe_mini_agent,
        sql_rsl_bird,
        sql_intercode_spider,
        tools_tau_airline,
        chat_mt_bench,
        math_gsm8k,
    )
}

__all__ = ["TASKS", "Task"]
