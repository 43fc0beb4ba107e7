"""Outputs are read from lines of log files."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer, text_of

from agentspec.engine import request_hash
from agentspec.store.log_files import LogFiles, LoggedOutput

USER, REPLY = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}
EXPORTED = {"request_id": "r", "time": 7.5, "num_prompt_tail": 1, "tokens": [1, 2, 3]}


def read(*lines: Any, files: LogFiles | None = None) -> list[LoggedOutput]:
    files = files or LogFiles(byte_tokenizer(), time=9.0)
    data = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return list(files.read(io.BytesIO(data.encode()), Path("log.jsonl")))


def ids(*lines: Any) -> list[int]:
    return [output.record.output_id for output in read(*lines)]


def test_hashes_are_those_of_the_engine() -> None:
    # These are the offset basis of FNV-1a and its hash of "a", with both halves combined by xor.
    assert request_hash("") == 0xCBF29CE4 ^ 0x84222325
    assert request_hash("a") == 0xAF63DC4C ^ 0x8601EC8C


def test_outputs_of_a_named_chat_share_its_id() -> None:
    first, second = read({"id": 5, "messages": [USER, REPLY, USER, REPLY]})
    assert first.record.request_id == second.record.request_id == "5"
    assert first.record.output_id >> 32 == second.record.output_id >> 32 == request_hash("5")
    assert first.record.output_id != second.record.output_id
    assert text_of(first.record.tokens[first.record.num_prompt_tail :].tolist()) == "yes$"
    assert (first.record.time, first.namespace) == (9.0, None)


def test_a_chat_without_a_name_that_is_logged_again_with_each_turn_counts_once() -> None:
    one, again, two = ids({"messages": [USER, REPLY]}, {"messages": [USER, REPLY, USER, REPLY]})
    assert one == again != two


def test_ids_depend_on_what_was_said_and_where() -> None:
    chat = {"session": "s", "task": "t", "messages": [USER, REPLY]}
    other = {**chat, "messages": [USER, {"role": "assistant", "content": "no"}]}
    assert ids(chat) == ids(chat)
    assert len({*ids(chat), *ids(other), *ids({**chat, "task": "u"}), *ids({**chat, "session": "v"})}) == 4


def test_exported_lines_need_no_tokenizer() -> None:
    (output,) = read({**EXPORTED, "namespace": "n"}, files=LogFiles(None, time=9.0))
    record = output.record
    assert (record.request_id, record.time, record.num_prompt_tail, output.namespace) == ("r", 7.5, 1, "n")
    assert record.tokens.tolist() == [1, 2, 3]
    assert record.output_id >> 32 == request_hash("r")


def test_what_is_not_known_in_messages_is_noted() -> None:
    files = LogFiles(byte_tokenizer(), time=9.0)
    blocks = [{"type": "tool_use", "name": "ls", "input": {}}, {"type": "hologram", "waves": "abc"}]
    (output,) = read({"messages": [USER, {"role": "assistant", "content": blocks}]}, files=files)
    written = output.record.tokens[output.record.num_prompt_tail :]
    assert text_of(written.tolist()) == '{"name": "ls", "arguments": {}}$'
    assert files.reading.account.not_understood() == "block hologram in outputs (once, 11 characters)"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting property name"),
        ([1], "must be an object, got list"),
        ("[" * 100_000, "recursion"),
        ({"text": "a"}, "no known format matches"),
        ({**EXPORTED, "tokens": []}, "one at least"),
        ({**EXPORTED, "tokens": [1.5]}, "tokens must be a list of ids"),
        ({**EXPORTED, "tokens": [[1], [2, 3]]}, ""),
        ({**EXPORTED, "tokens": [1, 257]}, r"must be in \[0, 257\), got 1 to 257"),
        ({**EXPORTED, "tokens": [1, 2**70]}, ""),
        ({**EXPORTED, "num_prompt_tail": 3}, r"num_prompt_tail must be in \[0, 3\)"),
        ({**EXPORTED, "request_id": 5}, "request_id must be a string, got int"),
        ({**EXPORTED, "time": "now"}, "time must be a number"),
        ({**EXPORTED, "time": -5}, "time must be in seconds since 1970"),
        ({**EXPORTED, "time": float("nan")}, "time must be in seconds since 1970"),
        ({**EXPORTED, "request_id": "r" * 70_000}, "request id must be at most 65535 bytes"),
        ({**EXPORTED, "namespace": 5}, "namespace must be a string"),
        ({**EXPORTED, "output_id": "zz"}, "hexadecimal digits"),
        ({**EXPORTED, "output_id": "5"}, "of another request"),
    ],
)
def test_bad_lines_are_named_and_skipped(line: Any, reason: str) -> None:
    files = LogFiles(byte_tokenizer(), time=9.0)
    assert len(read(line, EXPORTED, "", files=files)) == 1
    assert (files.reading.num_bad, files.reading.outputs, files.reading.tokens) == (1, 1, 2)
    (bad,) = files.reading.bad
    assert re.match(f"log.jsonl:1: .*{reason}", bad)
