"""Runs OpenHands on a task, for agent_program.py.

The SDK's agent has a terminal and a file editor in the task's folder. It reads these keys of the job: `config`, fields
of the SDK's `LLM`; `environment`, variables for the agent's commands; `step_limit`, `time_limit_s` and
`command_timeout_s`. It stores OpenHands' own log of every call beside the trajectory.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PROMPT = """A Python repository is in the current directory, {folder}. It has this issue:

<issue>
{issue}
</issue>

Change the repository's source files, not its tests, so that the issue is solved. First look at the code that is concerned
and reproduce the issue with a script, then change the code, run your script and the repository's tests
(`python -m tests`) again, delete what you have added, and finish."""

# The SDK's status at the end of a conversation -> mini-swe-agent's name for the same end.
_EXITS = {"finished": "Submitted", "paused": "TimeExceeded"}


def worker(job: dict[str, Any]) -> Callable[[dict[str, Any], Any], None]:
    """Returns the function that works on one task. Raises ImportError if the agent is not installed."""
    # The package reads the variable on import. It is imported here, because seconds of importing belong to no task.
    os.environ["OPENHANDS_SUPPRESS_BANNER"] = "1"
    import openhands.sdk
    import openhands.tools.file_editor
    import openhands.tools.terminal  # noqa: F401

    os.environ.update(job["environment"])
    return lambda task, notes: _work(job, task, notes)


def _work(job: dict[str, Any], task: dict[str, Any], notes: Any) -> None:
    from openhands.sdk import LLM, Agent, Conversation, Tool
    from openhands.tools.file_editor import FileEditorTool
    from openhands.tools.terminal import TerminalTool

    trajectory = Path(task["trajectory"])
    log = trajectory.parent / "calls"
    # The folder may hold the log of an earlier attempt that failed.
    shutil.rmtree(log, ignore_errors=True)
    log.mkdir(parents=True)
    config = {**job["config"], "log_completions": True, "log_completions_folder": str(log)}
    if task["extra_body"]:
        config["litellm_extra_body"] = task["extra_body"]
    llm = LLM(**config)
    terminal = {"terminal_type": "subprocess", "no_change_timeout_seconds": job["command_timeout_s"]}
    began: dict[str, float] = {}
    conversation = Conversation(
        agent=Agent(llm=llm, tools=[Tool(name=TerminalTool.name, params=terminal), Tool(name=FileEditorTool.name)]),
        workspace=task["folder"],
        max_iteration_per_run=job["step_limit"],
        callbacks=[lambda event: _note_command(event, began, notes)],
        visualizer=None,
    )
    # The pause takes effect between two steps.
    alarm = threading.Timer(job["time_limit_s"], conversation.pause)
    alarm.daemon = True
    alarm.start()
    try:
        conversation.send_message(_PROMPT.format(folder=task["folder"], issue=task["issue"]))
        conversation.run()
    finally:
        alarm.cancel()
        usages, status = llm.metrics.token_usages, str(conversation.state.execution_status.value)
        conversation.close()
        notes.steps = len(usages)
        ended_by_limit = status == "error" and notes.steps >= job["step_limit"]
        notes.exit_status = "LimitsExceeded" if ended_by_limit else _EXITS.get(status, status)
        notes.prompt_tokens = sum(usage.prompt_tokens for usage in usages)
        notes.completion_tokens = sum(usage.completion_tokens for usage in usages)
        notes.model_seconds = sum(one.latency for one in llm.metrics.response_latencies)
        trajectory.write_text(json.dumps({"messages": _messages(log)}), encoding="utf-8")


def _note_command(event: Any, began: dict[str, float], notes: Any) -> None:
    """Adds the time between a tool call and its result to the command time."""
    kind, now = type(event).__name__, time.perf_counter()
    if kind == "ActionEvent":
        began[event.tool_call_id] = now
    elif kind == "ObservationEvent" and event.tool_call_id in began:
        notes.command_seconds += now - began.pop(event.tool_call_id)


def _messages(log: Path) -> list[dict[str, Any]]:
    """The messages and the answer of the last call, which include the whole conversation."""
    calls = [json.loads(path.read_text(encoding="utf-8")) for path in log.glob("*.json")]
    if not calls:
        return []
    last = max(calls, key=lambda call: call["timestamp"])
    # If tools are called in the text, `response` lacks the calls.
    answer = (last.get("raw_response") or last["response"])["choices"][0]["message"]
    return [*last["messages"], answer]
