"""Logs as a stream of recorded calls, read from files and folders of any known format, compressed or not."""

from __future__ import annotations

import json
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from agentspec.analysis.logs.calls import BadRecordError, Labels, LoggedCall, shown
from agentspec.analysis.logs.formats import calls_of
from agentspec.analysis.replay.traces import decompressed
from agentspec.errors import ConfigError

_RECORD_ENDINGS = (".jsonl", ".json", ".traj", ".ndjson")
_TEXT_ENDINGS = (".txt", ".md", ".log")
_COMPRESSED = (".xz", ".gz")
_NAMED_BAD = 20
_MAX_REASON = 200
_SNIFFED = 1 << 16
_CHUNK = 1 << 20
_MAX_RECORD = 64 << 20
"""The longest record in characters. Longer ones are bad, so a file without line ends cannot fill the memory."""
_TEXT_PART = 1 << 16
"""The characters of each output that is cut from a text file."""


@dataclass(slots=True)
class FileReading:
    """The numbers of records read from a file so far."""

    name: str
    formats: Counter[str] = field(default_factory=Counter)
    records: int = 0
    bad_records: int = 0


@dataclass(slots=True)
class LogReading:
    """The files and bad records read so far."""

    files: list[FileReading] = field(default_factory=list)
    bad: list[dict[str, str]] = field(default_factory=list)
    """The first bad records: file, where, reason."""

    @property
    def num_records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def num_bad(self) -> int:
        return sum(file.bad_records for file in self.files)

    @property
    def formats(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for file in self.files:
            counts += file.formats
        return dict(counts.most_common())

    def note_bad(self, file: FileReading, where: str, reason: str) -> None:
        """Counts a bad record, and lists it if it is one of the first."""
        file.bad_records += 1
        if len(self.bad) < _NAMED_BAD:
            self.bad.append({"file": file.name, "where": where, "reason": shown(reason, _MAX_REASON)})


def log_files(paths: Sequence[Path]) -> list[Path]:
    """The named files, and in named folders the files with the endings of logs, or of texts if there are no logs.

    Raises:
        ConfigError: A path does not exist, or a folder has no such file.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
            chosen = [f for f in files if _ending(f) in _RECORD_ENDINGS] or [
                f for f in files if _ending(f) in _TEXT_ENDINGS
            ]
            if not chosen:
                raise ConfigError(
                    f"no file in {path} ends with {', '.join(_RECORD_ENDINGS + _TEXT_ENDINGS)}, optionally followed by .xz "
                    "or .gz; pass the files by name"
                )
            found += chosen
        elif path.is_file():
            found.append(path)
        else:
            raise ConfigError(f"{path} does not exist; pass existing files or folders")
    return found


def read_calls(
    files: Sequence[Path], reading: LogReading, on_bytes: Callable[[int], object] = lambda done: None
) -> Iterator[tuple[FileReading, LoggedCall]]:
    """All calls of all files, one after another. Bad records are noted and skipped.

    Args:
        files: Files of any formats, which may be mixed.
        reading: Takes the notes on what was read.
        on_bytes: Called now and then with the number of bytes read of all files.
    """
    done = 0
    for path in files:
        file = FileReading(path.name)
        reading.files.append(file)
        try:
            with path.open("rb") as stream:
                for call in _file_calls(path, stream, file, reading):
                    yield file, call
                    on_bytes(done + stream.tell())
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            reading.note_bad(file, "file", f"cannot be read any further: {error}")
        done += path.stat().st_size if path.is_file() else 0
        on_bytes(done)


def _file_calls(path: Path, stream: IO[bytes], file: FileReading, reading: LogReading) -> Iterator[LoggedCall]:
    content = decompressed(stream, path)
    try:
        start = content.read(_SNIFFED)
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        reading.note_bad(file, "file", f"cannot be unpacked: {error}")
        return
    if not start.strip():
        reading.note_bad(file, "file", "is empty")
        return
    if b"\0" in start:
        reading.note_bad(file, "file", "is binary data, neither JSON nor text")
        return
    stem = path.name.split(".")[0]
    name = f"{path.parent.name}/{stem}" if path.parent.name else stem
    kind = _kind(path, start)
    if kind == "text":
        yield from _text_calls(content, start, file, reading, name)
        return
    values = _lines(content, start) if kind == "lines" else _values(content, start)
    for where, value in values:
        if isinstance(value, Exception):
            reading.note_bad(file, where, str(value))
            continue
        try:
            found, calls = calls_of(value, f"{name}:{where}" if kind == "lines" else name)
        except (BadRecordError, ValueError, TypeError, KeyError, RecursionError) as error:
            reading.note_bad(file, where, str(error))
            continue
        file.records += 1
        file.formats[found] += 1
        yield from calls


def _ending(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _kind(path: Path, start: bytes) -> str:
    """ "lines" for one JSON value per line, "values" for JSON in any other layout, "text" for anything else."""
    if _ending(path) in (".jsonl", ".ndjson"):
        return "lines"
    text = start.lstrip()
    if text.startswith(b"\xef\xbb\xbf"):
        text = text[3:]
    if not text.startswith((b"{", b"[")) or _ending(path) in _TEXT_ENDINGS and not _is_json_line(text):
        return "values" if _ending(path) in _RECORD_ENDINGS else "text"
    return "lines" if text.startswith(b"{") and _is_json_line(text) else "values"


def _is_json_line(text: bytes) -> bool:
    line, newline, _ = text.partition(b"\n")
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        # A line that is longer than the part that was read: its start shows whether it is JSON.
        return not newline and b'":' in line[:200]
    return True


def _lines(content: IO[bytes], start: bytes) -> Iterator[tuple[str, Any]]:
    """(where, value or the error) of each line that is not blank."""
    number, rest = 0, start
    while True:
        *whole, rest = rest.split(b"\n")
        for line in whole:
            number += 1
            if line.strip():
                yield f"line {number}", _parsed(line)
        if len(rest) > _MAX_RECORD:
            yield f"line {number + 1}", BadRecordError(f"a line must have at most {_MAX_RECORD >> 20} MB")
            return
        try:
            more = _read_on(content, len(rest))
        except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
            yield f"line {number + 1}", BadRecordError(f"the file ends early: {error}")
            return
        if not more:
            break
        rest += more
    if rest.strip():
        yield f"line {number + 1}", _parsed(rest)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        return BadRecordError(f"is not JSON: {error}")


def _values(content: IO[bytes], start: bytes) -> Iterator[tuple[str, Any]]:
    """(where, value or the error) of JSON values one after another, or of the elements of an array."""
    decoder = json.JSONDecoder()
    buffer, number, ended = start.decode("utf-8", "replace").removeprefix("\ufeff").lstrip(), 0, False
    pending = b""
    in_array = buffer.startswith("[")
    if in_array:
        buffer = buffer[1:]
    while True:
        buffer = buffer.lstrip(" \t\r\n,")
        if in_array and buffer.startswith("]"):
            return
        error: Exception | None = None
        if buffer:
            try:
                value, end = decoder.raw_decode(buffer)
            except (ValueError, RecursionError) as failure:
                error = failure
            else:
                number += 1
                buffer = buffer[end:]
                yield f"record {number}", value
                continue
        if ended or len(buffer) > _MAX_RECORD or isinstance(error, RecursionError):
            if buffer:
                yield f"record {number + 1}", BadRecordError(f"is not JSON: {error}")
            return
        try:
            more = _read_on(content, len(buffer))
        except (EOFError, lzma.LZMAError, zlib.error, OSError) as failure:
            yield f"record {number + 1}", BadRecordError(f"the file ends early: {failure}")
            return
        ended = not more
        text = pending + more
        # The bytes of an incomplete character wait for the next part.
        keep = 0 if ended else next((n for n in (1, 2, 3) if len(text) >= n and text[-n] >= 0xC0), 0)
        pending = text[len(text) - keep :]
        buffer += text[: len(text) - keep].decode("utf-8", "replace")


def _read_on(content: IO[bytes], held: int) -> bytes:
    """At least as many bytes as are held, so a long record is parsed only a few times."""
    return content.read(max(_CHUNK, held))


def _text_calls(
    content: IO[bytes], start: bytes, file: FileReading, reading: LogReading, name: str
) -> Iterator[LoggedCall]:
    """The text as one output, or as several that are cut at line ends if it is long."""
    labels = Labels(session=name)
    rest, position = start, 0
    ended = False
    while True:
        while not ended and len(rest) < 2 * _TEXT_PART:
            more = content.read(_CHUNK)
            ended = not more
            rest += more
        if not rest.strip():
            return
        cut = len(rest) if len(rest) <= 2 * _TEXT_PART else rest.rfind(b"\n", 0, _TEXT_PART) + 1 or _TEXT_PART
        try:
            text = rest[:cut].decode("utf-8")
        except UnicodeDecodeError as error:
            if position == 0:
                reading.note_bad(file, "file", f"is not UTF-8 text: {error.reason} at byte {error.start}")
                return
            text = rest[:cut].decode("utf-8", "replace")
        if position == 0:
            file.records += 1
            file.formats["text"] += 1
        yield LoggedCall((), "text\n", text, labels, position)
        position += 1
        rest = rest[cut:]
