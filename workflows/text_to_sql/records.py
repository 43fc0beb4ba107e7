"""The record of a question: one JSON object per line, with every call.

    {"session", "task", "run", "config", "question", "evidence", "difficulty", "gold", "sql", "outcome", "detail",
     "seconds", "outside_seconds", "fallbacks", "calls": [{"stage", "messages", "output", "prompt_tokens", "completion_tokens",
     "verify_steps", "finish_reason", "began", "seconds"}, ...], "failures": [{"stage", "error", "began", "seconds"}, ...]}

`session` is the question's identity, `task` its database, `run` the model. `evidence` and `difficulty` are those of the
set of questions, "" where it has none. Seconds are wall time; `outside_seconds` are
those without a call in progress. `verify_steps` is 0 unless the server tells it. `agentspec report` and `agentspec replay` read the calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentspec.errors import ConfigError
from agentspec.record_file import RecordFile
from agentspec.workflows.text_to_sql.agents.transcript import Transcript
from agentspec.workflows.text_to_sql.sql.score import OUTCOMES
from agentspec.workflows.text_to_sql.tasks import Task

RECORD_OUTCOMES = (*OUTCOMES, "ungraded")
"""The outcomes of a question. "ungraded" means that it has no gold SQL that runs within the limits of scoring."""

Record = dict[str, Any]


def record_of(
    task: Task,
    transcript: Transcript,
    *,
    run: str,
    config: Mapping[str, Any],
    outcome: str,
    sql: str = "",
    detail: str = "",
    fallbacks: tuple[str, ...] = (),
) -> Record:
    """The record of a question that was just answered."""
    seconds = transcript.seconds
    calls, failures = [], []
    for call in transcript.calls:
        times = {"began": round(call.began, 6), "seconds": round(call.completion.seconds, 6)}
        if call.completion.error:
            failures.append({"stage": call.stage, "error": call.completion.error, **times})
            continue
        calls.append(
            {
                "stage": call.stage,
                "messages": list(call.messages),
                "output": call.completion.text,
                "prompt_tokens": call.completion.prompt_tokens,
                "completion_tokens": call.completion.completion_tokens,
                "verify_steps": call.completion.verify_steps,
                "finish_reason": call.completion.finish_reason,
                **times,
            }
        )
    return {
        "session": task.identity,
        "task": task.database,
        "run": run,
        "config": dict(config),
        "question": task.question,
        "evidence": task.evidence,
        "difficulty": task.difficulty,
        "gold": task.sql,
        "sql": sql,
        "outcome": outcome,
        "detail": detail,
        "seconds": round(seconds, 6),
        "outside_seconds": round(max(0.0, seconds - transcript.model_seconds()), 6),
        "fallbacks": list(fallbacks),
        "calls": calls,
        "failures": failures,
    }


def resumed(file: RecordFile, run: str, config: Mapping[str, Any]) -> dict[str, Record]:
    """The records of an earlier run by session. Those of failed questions are removed from the file, so that these are
    asked again. Raises ConfigError if it is no file of records, or they are of another model or configuration."""

    def of_this_run(record: Record) -> Record:
        if (record["run"], record["config"]) != (run, dict(config)):
            raise ConfigError(
                f"{file.path.name} was recorded with {record['run']} and {record['config']}, this run is {run} with "
                f"{dict(config)}; name another file"
            )
        return record

    found = file.read(of_this_run)
    kept = {record["session"]: record for record in found if record["outcome"] != "error"}
    if len(kept) < len(found):
        file.keep(kept.values())
    return kept
