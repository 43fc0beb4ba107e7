"""The records of a file's content: lines, JSON in any layout, tables, server-sent events, and lines of program logs.

A part that cannot be read costs that part. Reading goes on where the next record begins.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from io import BufferedReader
from typing import Any, NamedTuple

from agentspec.analysis.logs.calls import BadRecordError, NoAnswerError, from_text
from agentspec.analysis.logs.container import Content
from agentspec.analysis.logs.formats.streams import events_of, is_events

MAX_RECORD = 64 << 20
"""The longest record in bytes. Longer ones are bad, so that a file without line ends cannot fill the memory."""
CHUNK = 1 << 20
_BLANK = b" \t\r\n\v\f\0"
_TABLES = (".csv", ".tsv")
_TEXTS = (".txt", ".md", ".log")
_LINES = (".jsonl", ".ndjson")
_LOG_LINE = re.compile(
    rb"[\[(<]?(\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d|\w{3} +\d{1,2} \d\d:\d\d:\d\d|\d\d:\d\d:\d\d|"
    rb"(DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL)\b)"
)
_NEAR_END = 32
_RECORD_KEYS = {
    "prompt", "completion", "response", "messages", "input", "output", "conversations", "trajectory", "traj",
}  # fmt: skip


class Value(NamedTuple):
    """One value of a file."""

    where: str
    value: Any
    """Parsed JSON, or the exception that says why there is none."""
    is_alone: bool = False
    """Whether it may be the only value of the file, so that the file's name is a name for it."""


def layout_of(ending: str, start: bytes) -> str:
    """How the content of a file that begins with `start` is split: "lines" of JSON, "log" for JSON in lines of a
    program's log, "values", "table", "events" or "text"."""
    text = start.lstrip(_BLANK)
    if ending in _TABLES or ending not in _TEXTS[:2] and _is_table(text):
        return "table"
    if is_events(text[:4096].decode("utf-8", "replace")):
        return "events"
    if _first_line_is_json(text):
        # A file with one line is one record, which may be named like the file.
        return "lines" if text.partition(b"\n")[2].strip(_BLANK) or ending in _LINES else "values"
    # A line of a log may begin with a bracket, and a text too.
    if ending != ".md" and _is_log(text) or _has_json_lines(text, 0.5 if ending in _TEXTS[:2] else 0.0):
        return "log"
    if text[:1] in (b"{", b"[") and _may_be_json(text) and (ending not in _TEXTS or b'":' in text[:400]):
        return "values"
    return "lines" if ending in _LINES else "values" if ending in (".json", ".traj") else "text"


def lines(content: BufferedReader[Content], is_log: bool = False) -> Iterator[Value]:
    """A value for each line that is not blank. In a log, a line may have other text before its JSON, or no JSON at
    all."""
    number = 0
    while line := content.readline(MAX_RECORD + 1):
        number += 1
        if len(line) > MAX_RECORD and not line.endswith(b"\n"):
            yield Value(f"line {number}", BadRecordError(f"a line must have at most {MAX_RECORD >> 20} MB"))
            while line and not line.endswith(b"\n"):
                line = content.readline(CHUNK)
        elif line.strip(_BLANK):
            value = _line(line, is_log)
            # What is left of a record where a file was torn is told once, with the file.
            if not isinstance(value, Exception) or line.endswith(b"\n") or not content.raw.damage:
                yield Value(f"line {number}", value)


def values(content: BufferedReader[Content]) -> Iterator[Value]:
    """JSON values one after another, and the elements of arrays."""
    decoder = json.JSONDecoder(strict=False)
    text, pending = _decoded(content.read(CHUNK), b"", False)
    buffer, number, ended = text.lstrip("\ufeff \t\r\n\0"), 0, False
    is_array, opening, skipping = False, "", False
    while True:
        buffer = buffer.lstrip(" \t\r\n\0" if not is_array else " \t\r\n\0,")
        if not is_array and buffer.startswith("[") and not skipping:
            is_array, buffer = True, buffer[1:]
            continue
        if is_array and buffer.startswith("]") and not skipping:
            is_array, buffer = False, buffer[1:]
            continue
        error: Exception | None = None
        if buffer and skipping:
            # Reading goes on where a record begins as the first one did.
            place = buffer.find(opening) if opening else -1
            if place >= 0:
                buffer, skipping = buffer[place:], False
                continue
            buffer = buffer[-len(opening) :] if opening else ""
        elif buffer:
            try:
                value, end = decoder.raw_decode(buffer)
            except (ValueError, RecursionError) as failure:
                error = failure
            else:
                number += 1
                opening = opening or _opening(buffer)
                buffer = buffer[end:]
                yield Value(f"record {number}", value, number == 1 and not is_array)
                continue
            if ended and content.raw.damage:
                return
            if _is_malformed(error, buffer, ended) or len(buffer) > MAX_RECORD:
                number += 1
                is_long = len(buffer) > MAX_RECORD and not _is_malformed(error, buffer, ended)
                told = f"is longer than {MAX_RECORD >> 20} MB; if it is a list of records in an object, write them as lines (jq -c '.data[]')"
                reason = told if is_long else f"is not JSON: {error}"
                yield Value(f"record {number}", BadRecordError(reason))
                opening = opening or _opening(buffer)
                buffer, skipping = buffer[1:], True
                continue
        if ended:
            return
        more = content.read(max(CHUNK, len(buffer)))
        ended = not more
        text, pending = _decoded(more, pending, ended)
        buffer += text


def table(content: BufferedReader[Content], ending: str) -> Iterator[Value]:
    """The rows of a table with a head as records. Its columns may hold JSON."""
    csv.field_size_limit(MAX_RECORD)
    head = content.peek().split(b"\n", 1)[0]
    delimiter = "\t" if ending == ".tsv" or head.count(b"\t") > head.count(b",") else ";" if b"," not in head else ","
    rows = csv.DictReader(_text_lines(content), delimiter=delimiter)
    number = 0
    while True:
        number += 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            yield Value(f"row {number}", BadRecordError(f"is no row of a table: {error}"))
            continue
        if row is None:
            return
        record = {key: value for key, value in row.items() if key and value}
        if row.get(None):
            yield Value(f"row {number}", BadRecordError("has more columns than the head of the table"))
            continue
        yield Value(f"row {number}", _cells(record))


def events(content: BufferedReader[Content]) -> Iterator[Value]:
    """The values of server-sent events."""
    for number, value in enumerate(events_of(_text_lines(content)), 1):
        yield Value(f"event {number}", value)


def _text_lines(content: BufferedReader[Content]) -> Iterator[str]:
    return (line.decode("utf-8", "replace") for line in iter(lambda: content.readline(MAX_RECORD), b""))


def _cells(record: dict[str, str]) -> dict[str, Any]:
    """A row whose cells of lists and objects are parsed, except answers: a model may write JSON."""
    parsed: dict[str, Any] = {}
    for key, cell in record.items():
        parsed[key] = cell
        if key.lower() not in ("completion", "response", "output"):
            parsed[key] = from_text(cell)
    return parsed


def _line(line: bytes, is_log: bool) -> Any:
    line = line.strip(_BLANK).removeprefix(b"\xef\xbb\xbf")
    failure: Exception | None = None
    for place in dict.fromkeys((0, line.find(b'{"') if is_log else 0)):
        if place >= 0 and line[place : place + 1] in (b"{", b"[") or not is_log:
            try:
                return json.loads(line[place:], strict=False)
            except (ValueError, RecursionError) as error:
                failure = error
    if is_log and line[:1] != b"{" and b'{"' not in line:
        if b"obj=GenerateReqInput(" in line:
            return NoAnswerError("a line of SGLang's log as text: log with --log-requests-format json")
        return NoAnswerError("a line of a program's log without JSON")
    return BadRecordError(f"is not JSON: {failure}")


def _decoded(data: bytes, pending: bytes, ended: bool) -> tuple[str, bytes]:
    """The text of bytes, and the bytes of an incomplete character at their end, which wait for the next part."""
    data = pending + data
    keep = 0 if ended else next((n for n in (1, 2, 3) if len(data) >= n and data[-n] >= 0xC0), 0)
    return data[: len(data) - keep].decode("utf-8", "replace"), data[len(data) - keep :]


def _is_malformed(error: Exception, buffer: str, ended: bool) -> bool:
    """Whether more text would not help."""
    if ended or not isinstance(error, json.JSONDecodeError):
        return True
    return not error.msg.startswith("Unterminated string") and error.pos < len(buffer) - _NEAR_END


def _opening(buffer: str) -> str:
    """How a record begins: up to the end of its first key."""
    found = re.match(r'[\[{]\s*("[^"\\]{1,100}")?', buffer)
    return found.group(0) if found else ""


def _is_table(text: bytes) -> bool:
    """Whether the first line is the head of a table of prompts and answers."""
    names = [
        name.strip(b' "\r').lower().decode("ascii", "replace") for name in re.split(rb"[,;\t]", text.split(b"\n", 1)[0])
    ]
    return len(_RECORD_KEYS.intersection(names)) >= 2


def _first_line_is_json(text: bytes) -> bool:
    line, newline, _ = text.partition(b"\n")
    try:
        found = json.loads(line.strip(_BLANK), strict=False)
    except (ValueError, RecursionError):
        # A line that is longer than the part that was read: its start shows whether it is JSON.
        return not newline and text.startswith(b"{") and b'":' in line[:200]
    return isinstance(found, dict) or isinstance(found, list) and all(isinstance(one, dict) for one in found)


def _may_be_json(text: bytes) -> bool:
    return re.match(rb'[\[{]\s*([\[{"\]}]|$|-?\d|true|false|null)', text[:200]) is not None


def _has_json_lines(text: bytes, share: float) -> bool:
    """Whether an object ends some of the first lines, and at least this share of them."""
    first = [line for line in text.split(b"\n") if line.strip()]
    if text[:1] in (b"{", b"["):
        return False
    with_json = sum(b'{"' in line and isinstance(_line(line, True), dict) for line in first)
    return bool(with_json) and with_json >= share * len(first)


def _is_log(text: bytes) -> bool:
    """Whether most of the first lines are those of a program's log."""
    first = [line for line in text.split(b"\n")[:20] if line.strip()]
    found = sum(_LOG_LINE.match(line) is not None for line in first)
    return found >= 2 and 2 * found > len(first)
