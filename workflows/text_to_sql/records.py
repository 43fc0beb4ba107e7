"""The record of a question: one JSON object per line, with every call.

    {"session", "task", "run", "config", "question", "evidence", "difficulty", "gold", "sql", "outcome", "detail",
     "seconds", "outside_seconds", "fallbacks", "calls": [{"stage", "messages", "output", "prompt_tokens", "completion_tokens",
     "verify_steps", "finish_reason", "began", "seconds"}, ...], "failures": [{"stage", "error", "began", "seconds"}, ...]}

`session` is the question's identity, `task` its database, `run` the model. `evidence` and `difficulty` are those of the
set of questions, "" where it has none. Seconds are wall time; `outside_seconds` are
those without a call in progress. `verify_steps` is 0 unless the server tells it. `agentspec report` and `agentspec replay` read the calls.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
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


class RecordFile:
    """Appends records to a file as questions end, and resumes from the records of an earlier run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def resume(self, run: str, config: Mapping[str, Any]) -> dict[str, Record]:
        """The valid records by session.

        Records of failed questions are dropped, so that these are asked again. An incomplete last line of an earlier
        run is dropped, too. Raises ConfigError if the file cannot be read, is not a file of records, or holds records
        of another model or configuration.
        """
        if not self._path.exists():
            return {}
        kept: dict[str, Record] = {}
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot resume from {self._path}: {error}") from error
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                session, same = record["session"], (record["run"], record["config"]) == (run, dict(config))
            except (ValueError, KeyError, TypeError):
                if number == len(lines):
                    break
                raise ConfigError(
                    f"{self._path.name}:{number} is no record of this workflow; name another file"
                ) from None
            if not same:
                raise ConfigError(
                    f"{self._path.name}:{number} was recorded with {record['run']} and {record['config']}, this run is "
                    f"{run} with {dict(config)}; name another file"
                )
            if record["outcome"] != "error":
                kept[session] = record
        # A file beside it is written and renamed, so that an interruption leaves either the old or the new file.
        beside = self._path.with_name(self._path.name + ".part")
        beside.write_text("".join(map(_line, kept.values())), encoding="utf-8")
        os.replace(beside, self._path)
        return kept

    def append(self, record: Record) -> None:
        """Write one record and flush it."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(record))


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
