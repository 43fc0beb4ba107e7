"""Recorded model calls as token ids.

A file has one JSON object per line, plain or compressed (.xz, .gz). An object is of one of two kinds:

    chat     {"session", "task", "run", "messages": [{"role", "content", "tool_calls"?}, ...]}
    staged   {"session", "task", "run", "calls": [{"stage", "output", "messages"?}, ...]}

Each assistant message of a chat is one call. Its prompt is all messages before it and the assistant's header. Its
output is the rest of the message:

    <|user|>\\nWhat time is it?END<|assistant|>\\nHalf past two.{"name": "clock", "arguments": {}}END
    └───────────────── prompt ─────────────────┘└──────────────────── output ─────────────────────┘

A header is ordinary text. END is the tokenizer's token for the end of a turn. Messages are read as in other logs, see
agentspec.analysis.logs.formats.messages: each part is on lines of its own, and what is not known is noted. The prompt of
a staged call is that of a chat if its messages were recorded, and otherwise a line with the name of its stage. Its output
is the text and END.
"""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.account import Account
from agentspec.analysis.logs.calls import BadRecordError
from agentspec.analysis.logs.formats.messages import Message, read_messages
from agentspec.analysis.replay.tokenizer import Tokenizer
from agentspec.errors import ConfigError


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
    calls = [call for session in sessions for call in reader.calls(session)]
    if not calls:
        found = f"; {len(bad_lines)} lines were bad, the first {bad_lines[0]}" if bad_lines else ""
        raise ConfigError(f"no model call in {argument}{found}; a session has `messages` or `calls`")
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
        with path.open("rb") as file:
            lines = ((number, line) for number, line in enumerate(decompressed(file, path), 1) if line.strip())
            for number, line in lines if last is None else deque(lines, last):
                try:
                    session = json.loads(line)
                    check_session(session)
                except (ValueError, RecursionError) as error:
                    bad_lines.append(f"{path.name}:{number}: {error}")
                else:
                    sessions.append(session)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}; pass a .jsonl, .jsonl.xz or .jsonl.gz") from error
    return sessions


def decompressed(file: IO[bytes], path: Path) -> IO[bytes]:
    """Opens a file's content, decompressed if the name ends in .xz or .gz."""
    if path.suffix == ".xz":
        return lzma.open(file)
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(file))
    return file


def check_session(session: Any, account: Account | None = None) -> None:
    """Raises ValueError if the session lacks a part that `SessionReader` reads.

    Args:
        session: A JSON value.
        account: Takes what of the session's messages is understood.
    """
    account = account or Account()
    if not isinstance(session, dict):
        raise BadRecordError("not an object")
    if "messages" in session:
        read_messages(session["messages"], account, prompt=False)
    elif "calls" in session:
        calls = session["calls"]
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise BadRecordError("calls must be a list of objects")
        if not all(isinstance(call.get("stage"), str) and isinstance(call.get("output"), str) for call in calls):
            raise BadRecordError("a call has no stage or no output")
        for call in calls:
            read_messages(call.get("messages") or [], account)
            account.note_read("output", len(call["output"]))
    else:
        raise BadRecordError("neither messages nor calls")


class SessionReader:
    """Makes calls of sessions that check_session() accepted. It tokenizes each text once, because sessions of one task
    share their first messages. Its memory therefore grows with the texts read."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._end = np.array([tokenizer.end_of_turn], dtype=np.int32)
        self._encoded: dict[str, NDArray[np.int32]] = {}

    def calls(self, session: dict[str, Any]) -> Iterator[Call]:
        identity, task, run = (str(session.get(key, "")) for key in ("session", "task", "run"))
        if "messages" not in session:
            for call in session["calls"]:
                yield Call(identity, task, run, self._staged_prompt(call), self._turn(call["output"]))
            return
        parts: list[NDArray[np.int32]] = []
        for message in _messages(session["messages"]):
            parts.append(self._line(f"<|{message.role}|>"))
            turn = self._turn(message.read)
            if message.role == "assistant":
                # Later prompts do not repeat the reasoning.
                written = turn if message.written == message.read else self._turn(message.written)
                yield Call(identity, task, run, tuple(parts), written)
            parts.append(turn)

    def _staged_prompt(self, call: dict[str, Any]) -> tuple[NDArray[np.int32], ...]:
        if not call.get("messages"):
            return (self._line(call["stage"]),)
        turns = [(self._line(f"<|{m.role}|>"), self._turn(m.read)) for m in _messages(call["messages"])]
        return (*(part for turn in turns for part in turn), self._line("<|assistant|>"))

    def _line(self, text: str) -> NDArray[np.int32]:
        return self._cached(text + "\n")

    def _turn(self, text: str) -> NDArray[np.int32]:
        return np.concatenate([self._cached(text), self._end])

    def _cached(self, text: str) -> NDArray[np.int32]:
        if text not in self._encoded:
            self._encoded[text] = self._tokenizer.encode(text)
        return self._encoded[text]


def _messages(values: Any) -> list[Message]:
    # check_session() has noted what is not known.
    return read_messages(values, Account())
