"""Recorded model calls as token ids.

A file has one JSON object per line, plain or compressed (.xz, .gz), in any format of agentspec.analysis.logs.formats whose
records are whole sessions or requests, such as:

    chat     {"session", "task", "run", "messages": [{"role", "content", "tool_calls"?}, ...]}
    staged   {"session", "task", "run", "calls": [{"stage", "output", "messages"?}, ...]}

Each assistant message of a chat is one call. Its prompt is all messages before it and the assistant's header. Its
output is the rest of the message:

    <|user|>\\nWhat time is it?END<|assistant|>\\nHalf past two.{"name": "clock", "arguments": {}}END
    └───────────────── prompt ─────────────────┘└──────────────────── output ─────────────────────┘

A header is ordinary text. END is the tokenizer's token for the end of a turn. The prompt of a staged call is that of a
chat if its messages were recorded, and otherwise a line with the name of its stage.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.account import Account
from agentspec.analysis.logs.calls import BadRecordError, LoggedCall
from agentspec.analysis.logs.formats import calls_of
from agentspec.analysis.replay.encoding import Encoder
from agentspec.analysis.replay.tokenizer import Tokenizer
from agentspec.errors import ConfigError
from agentspec.record_file import READ_ERRORS, filled_lines


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One model call."""

    session: str
    task: str
    run: str
    prompt_parts: tuple[NDArray[np.int32], ...]
    """The prompt in pieces, which the calls of a session share. Together they have at least one token."""
    output: NDArray[np.int32]
    """int32[n], n >= 1; the last token is the end of the turn."""

    @property
    def prompt(self) -> NDArray[np.int32]:
        """int32[n], joined anew on each access, because all prompts of a session would not fit into memory."""
        return np.concatenate(self.prompt_parts)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The calls of a file's sessions, in the order of the file."""

    name: str
    """The argument without folder and endings, such as `swe@0:8`."""
    calls: list[Call]
    num_sessions: int
    bad_lines: list[str]
    """Lines that were skipped, as `file:line: reason`."""
    account: Account = field(default_factory=Account)
    """What of the messages was read, and what is not known."""


def read_trace(argument: str, tokenizer: Tokenizer) -> Trace:
    """Reads `PATH`, or a slice of its good lines, `PATH@START:STOP`, with the meaning of a slice of a list. Raises
    ConfigError if the file cannot be read, the slice is invalid, or no session is left."""
    path, chosen = _split_argument(argument)
    reader = SessionReader(tokenizer)
    bad_lines: list[str] = []
    account = Account()
    sessions = read_sessions(path, bad_lines)[chosen]
    for session in sessions:
        check_session(session, account)
    try:
        calls = [call for session in sessions for call in reader.calls(session)]
    except BadRecordError as error:
        raise ConfigError(f"{argument} cannot be replayed: {error}") from error
    if not calls:
        found = f"; {len(bad_lines)} lines were bad, the first {bad_lines[0]}" if bad_lines else ""
        raise ConfigError(f"no model call in {argument}{found}; each line must be a session or an answered request")
    name = path.name.split(".jsonl")[0] + argument.removeprefix(str(path))
    return Trace(name, calls, len(sessions), bad_lines, account)


def _split_argument(argument: str) -> tuple[Path, slice]:
    path, at, bounds = argument.rpartition("@")
    if not at or ":" not in bounds:
        return Path(argument), slice(None)
    try:
        numbers = [int(word) if word.strip() else None for word in bounds.split(":")]
        if len(numbers) > 3 or 0 in numbers[2:]:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"a trace must be PATH or PATH@START:STOP, got {argument!r}; for example trace.jsonl@0:8"
        ) from None
    return Path(path), slice(*numbers)


def read_sessions(path: Path, bad_lines: list[str], last: int | None = None) -> list[dict[str, Any]]:
    """The sessions of a file, or of its last lines that are not blank. Others are noted as `file:line: reason`. Raises
    ConfigError if the file cannot be read."""
    sessions = []
    try:
        lines = filled_lines(path)
        for number, line in lines if last is None else deque(lines, last):
            try:
                session = json.loads(line)
                check_session(session)
            except (ValueError, RecursionError) as error:
                bad_lines.append(f"{path.name}:{number}: {error}")
            else:
                sessions.append(session)
    except READ_ERRORS as error:
        raise ConfigError(f"cannot read the trace {path}: {error}; pass a .jsonl, .jsonl.xz or .jsonl.gz") from error
    return sessions


def check_session(session: Any, account: Account | None = None) -> list[LoggedCall]:
    """The calls of a session, as text. Raises ValueError if it has none in a known format. `session`: A JSON value."""
    return calls_of(session, "", account)[1]


class SessionReader:
    """Makes calls of sessions that check_session() accepted."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encoder = Encoder(tokenizer)

    def calls(self, session: dict[str, Any]) -> Iterator[Call]:
        """Raises BadRecordError if the session has token ids of another tokenizer."""
        task, run = (str(session.get(key, "")) for key in ("task", "run"))
        for call in check_session(session):
            identity = str(session.get("session", call.labels.session))
            yield Call(identity, task, run, self._encoder.prompt_parts(call), self._encoder.output(call))
