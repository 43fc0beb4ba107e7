"""Outputs recorded in files, as records: chat logs, traces, and what `agentspec store export` wrote.

JSONL, plain or compressed (.xz, .gz); each line is of one of three kinds:

    chat        {"messages": [{"role", "content", "tool_calls"?}, ...]}: each assistant message is an output
    staged      {"calls": [{"stage", "output"}, ...]}: each call is one
    exported    {"request_id", "time", "num_prompt_tail", "tokens", "namespace"?, "output_id"?}

The first two may be named by "session", "request_id" or "id", which is then the request id of all their outputs, and
are made tokens as in agentspec.analysis.replay.traces. An output gets its id from its line's names and what is in it, so that
reading a file again gives the same ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.account import Account
from agentspec.analysis.replay import Call, SessionReader, Tokenizer, check_session
from agentspec.config import MAX_TOKEN_IDS, EngineConfig
from agentspec.engine import request_hash
from agentspec.errors import ConfigError
from agentspec.record_file import decompressed
from agentspec.store.record_layout import pack_output
from agentspec.store.records import OutputRecord

# This number of lines shares tokenized text, which bounds the memory.
_LINES_PER_READER = 500
# This number of bad lines is named.
_NAMED_BAD = 5


@dataclass(slots=True)
class LogReading:
    """Counts of what was read so far."""

    outputs: int = 0
    tokens: int = 0
    """Tokens of the outputs, without the ends of their prompts."""
    bad: list[str] = field(default_factory=list)
    """The first lines that were skipped, as `file:line: reason`."""
    num_bad: int = 0
    account: Account = field(default_factory=Account)
    """What of the messages was read, and what is not known."""


@dataclass(frozen=True, slots=True)
class LoggedOutput:
    """An output as read from a file."""

    record: OutputRecord
    namespace: str | None
    """As given in the line; None if the line has none."""


class _BadLineError(ValueError):
    """A line is JSON, but no output."""


class LogFiles:
    """Reads files one after another."""

    def __init__(self, tokenizer: Tokenizer | None, *, time: float) -> None:
        """
        Args:
            tokenizer: The model's; None: only exported files can be read.
            time: When outputs count as finished whose line does not say it, in seconds since 1970.
        """
        self.reading = LogReading()
        self._tokenizer = tokenizer
        self._time = time
        self._prompt_tail = EngineConfig().prompt_tail

    def read(self, file: IO[bytes], path: Path) -> Iterator[LoggedOutput]:
        """The outputs of an open file, each noted when it is returned; bad lines are noted and skipped. Raises
        ConfigError if a line is a chat or staged and there is no tokenizer, and one of READ_ERRORS if the
        file cannot be read on."""
        reader: SessionReader | None = None
        for number, line in enumerate(decompressed(file, path), 1):
            if self._tokenizer and (reader is None or number % _LINES_PER_READER == 0):
                reader = SessionReader(self._tokenizer)
            if not line.strip():
                continue
            try:
                outputs = self._outputs(json.loads(line), reader)
                for output in outputs:
                    pack_output(output.record)
            except ConfigError:
                raise
            except (ValueError, RecursionError) as error:
                self.reading.num_bad += 1
                if len(self.reading.bad) < _NAMED_BAD:
                    self.reading.bad.append(f"{path}:{number}: {error}")
                continue
            for output in outputs:
                self.reading.outputs += 1
                self.reading.tokens += len(output.record.tokens) - output.record.num_prompt_tail
                yield output

    def _outputs(self, line: Any, reader: SessionReader | None) -> list[LoggedOutput]:
        """Raises ValueError if a line is none of the three."""
        if isinstance(line, dict) and "tokens" in line:
            return [self._exported(line)]
        check_session(line, self.reading.account)
        if reader is None:
            raise ConfigError("chat logs and traces need the model's tokenizer; pass its file with --tokenizer")
        name = next(
            (str(line[key]) for key in ("session", "request_id", "id") if line.get(key) not in (None, "")), None
        )
        return [self._called(call, name, turn) for turn, call in enumerate(reader.calls(line))]

    def _called(self, call: Call, name: str | None, turn: int) -> LoggedOutput:
        tail = self._end_of_prompt(call)
        tokens = np.concatenate([tail, call.output])
        if name is None:
            # Where a log repeats a conversation with each turn, each output is taken once.
            content = hashlib.sha256(len(call.output).to_bytes(8, "little"))
            for part in (*call.prompt_parts, call.output):
                content.update(part.tobytes())
            request_id = f"import-{content.hexdigest()[:24]}"
            output_id = _output_id(request_id, "", tokens)
        else:
            request_id = name
            output_id = _output_id(request_id, json.dumps([call.task, call.run, turn]), tokens)
        return LoggedOutput(OutputRecord(output_id, request_id, self._time, len(tail), tokens), None)

    def _end_of_prompt(self, call: Call) -> NDArray[np.int32]:
        """As many of the prompt's last tokens as an engine keeps; the whole prompt may be long."""
        parts: list[NDArray[np.int32]] = []
        missing = self._prompt_tail
        for part in reversed(call.prompt_parts):
            if missing > 0:
                parts.insert(0, part[-missing:])
                missing -= len(part)
        return np.concatenate(parts)

    def _exported(self, line: dict[str, Any]) -> LoggedOutput:
        request_id, time = line.get("request_id"), line.get("time", self._time)
        num_prompt_tail, namespace = line.get("num_prompt_tail", 0), line.get("namespace")
        if not isinstance(request_id, str):
            raise _BadLineError(f"request_id must be a string, got {type(request_id).__name__}")
        if not isinstance(time, int | float) or isinstance(time, bool):
            raise _BadLineError(f"time must be a number of seconds, got {type(time).__name__}")
        if namespace is not None and not isinstance(namespace, str):
            raise _BadLineError(f"namespace must be a string, got {type(namespace).__name__}")
        tokens = self._tokens(line["tokens"])
        if not isinstance(num_prompt_tail, int) or not 0 <= num_prompt_tail < len(tokens):
            raise _BadLineError(f"num_prompt_tail must be in [0, {len(tokens)}), below the number of tokens")
        output_id = _output_id(request_id, f"{num_prompt_tail}", tokens)
        if "output_id" in line:
            output_id = _parse_output_id(line["output_id"], request_id)
        return LoggedOutput(OutputRecord(output_id, request_id, float(time), num_prompt_tail, tokens), namespace)

    def _tokens(self, values: Any) -> NDArray[np.int32]:
        limit = self._tokenizer.vocab_size if self._tokenizer else MAX_TOKEN_IDS
        if not isinstance(values, list) or not values:
            raise _BadLineError("tokens must be a list of ids, one at least")
        tokens = np.array(values)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise _BadLineError("tokens must be a list of ids")
        if tokens.min() < 0 or tokens.max() >= limit:
            raise _BadLineError(f"token ids must be in [0, {limit}), got {tokens.min()} to {tokens.max()}")
        return tokens.astype(np.int32)


def _output_id(request_id: str, place: str, tokens: NDArray[np.int32]) -> int:
    content = hashlib.sha256(json.dumps([request_id, place]).encode())
    content.update(tokens.astype("<i4").tobytes())
    return request_hash(request_id) << 32 | int.from_bytes(content.digest()[:4], "little")


def _parse_output_id(value: Any, request_id: str) -> int:
    try:
        output_id = int(value, 16)
    except (TypeError, ValueError):
        raise _BadLineError("output_id must be a string of hexadecimal digits") from None
    if output_id >> 32 != request_hash(request_id):
        raise _BadLineError("output_id is of another request")
    return output_id
