"""Logs as a stream of recorded calls, read from files and folders of any known format, compressed or not."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

from agentspec.analysis.logs import layout
from agentspec.analysis.logs.account import Account
from agentspec.analysis.logs.calls import Labels, LoggedCall, NoAnswerError, shown
from agentspec.analysis.logs.container import COMPRESSED, PARQUET, Content, refused_kind
from agentspec.analysis.logs.formats import calls_of, records_in
from agentspec.analysis.logs.formats.fields import names
from agentspec.analysis.logs.formats.sessions import Sessions, part_of
from agentspec.analysis.logs.layout import Value
from agentspec.errors import ConfigError

_RECORD_ENDINGS = (".jsonl", ".json", ".traj", ".ndjson", ".csv", ".tsv", ".parquet")
_TEXT_ENDINGS = (".txt", ".md", ".log")
_NAMED_BAD = 20
_MAX_REASON = 200
_SNIFFED = 1 << 16
_TEXT_PART = 1 << 16
"""The characters of each output that is cut from a text file."""
_MALFORMED = (ValueError, TypeError, KeyError, RecursionError, AttributeError)
_IDENTITIES = names(
    "id uuid rid request_id requestId span_id spanId context traj_id trial info attempts ts timestamp created created_at"
)
"""Fields that differ between two records of which neither is a copy of the other."""
_MAX_SEEN = 1 << 20
_ROWS = 64
"""The rows of a Parquet file that are read at a time."""


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
    account: Account = field(default_factory=Account)
    """What was understood of the others."""
    deadline: float | None = None
    """The value of time.process_time() at which reading stops, if something has been read; None: at the end."""
    stopped: float | None = None
    """The share of the log that was read by then; None: all."""
    on_value: Callable[[], object] = lambda: None
    """Called after each value of a file, whether it has calls or not."""
    _seen: set[bytes] = field(default_factory=set)

    @property
    def is_late(self) -> bool:
        return self.deadline is not None and time.process_time() > self.deadline and self.num_records > 0

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

    @property
    def understood(self) -> float:
        """The share of the log that was understood: of its records, or of the text of its outputs or prompts, whichever is
        least."""
        known = self.num_records + self.account.num_skipped
        records = known / (known + self.num_bad) if known + self.num_bad else 1.0
        return min(records, self.account.understood("output"), self.account.understood("prompt"))

    def has_twice(self, record: Any) -> bool:
        """Whether an equal record was met before that is the same one, because its answer or itself has an identity. A
        copy of a log beside it, or a record that was exported twice, would seem to be a perfect repeat."""
        places = [record, *record.values()] if isinstance(record, dict) else []
        if not any(isinstance(place, dict) and _IDENTITIES & place.keys() for place in places):
            return False
        digest = hashlib.blake2b(json.dumps(record, default=str).encode(), digest_size=8).digest()
        is_known = digest in self._seen
        if len(self._seen) < _MAX_SEEN:
            self._seen.add(digest)
        return is_known

    def note_bad(self, file: FileReading, where: str, reason: str) -> None:
        """Counts a bad record, and lists it if it is one of the first."""
        file.bad_records += 1
        if len(self.bad) < _NAMED_BAD:
            self.bad.append({"file": file.name, "where": where, "reason": shown(reason, _MAX_REASON)})


def log_files(paths: Sequence[Path]) -> list[Path]:
    """The named files, and in named folders the files with the endings of logs, or of texts if there are no logs, each once.
    Raises ConfigError if a path does not exist, or a folder has no such file."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            files = [file for file in path.rglob("*") if file.is_file() and not file.name.startswith(".")]
            # The second call of an agent comes before the tenth one.
            files.sort(key=lambda file: [int(w) if w.isdecimal() else w for w in re.split(r"(\d+)", str(file))])
            chosen = [f for f in files if _ending(f) in _RECORD_ENDINGS] or [
                f for f in files if _ending(f) in _TEXT_ENDINGS
            ]
            if not chosen:
                raise ConfigError(
                    f"no file in {path} ends with {', '.join(_RECORD_ENDINGS + _TEXT_ENDINGS)}, optionally followed by "
                    f"{', '.join(COMPRESSED)}; pass the files by name"
                )
            found += chosen
        elif path.is_file():
            found.append(path)
        else:
            raise ConfigError(f"{path} does not exist; pass existing files or folders")
    return list({path.resolve(): path for path in found}.values())


def read_calls(
    files: Sequence[Path], reading: LogReading, on_bytes: Callable[[int], object] = lambda done: None
) -> Iterator[tuple[FileReading, LoggedCall]]:
    """All calls of all files, of any formats, one after another. Bad records are noted in `reading` and skipped.
    on_bytes is called now and then with the number of bytes read of all files."""
    done = 0
    sessions = Sessions(reading.account)
    for path, following in zip_longest(files, files[1:]):
        if reading.is_late:
            break
        goes_on = following is not None and following.parent == path.parent
        file = FileReading(path.name)
        reading.files.append(file)
        try:
            with path.open("rb") as stream:
                reading.on_value = partial(_tell, on_bytes, done, stream)
                for call in _file_calls(path, stream, file, reading, sessions, goes_on):
                    yield file, call
                    reading.on_value()
        except OSError as error:
            reading.note_bad(file, "file", f"cannot be read any further: {error}")
        done += path.stat().st_size if path.is_file() else 0
        on_bytes(done)
    # The last file of a folder may have had nothing.
    for file in reading.files[-1:]:
        for call in _session_calls(file, reading, sessions, goes_on=False):
            yield file, call


def _tell(on_bytes: Callable[[int], object], done: int, stream: IO[bytes]) -> None:
    on_bytes(done + stream.tell())


def _file_calls(
    path: Path, stream: IO[bytes], file: FileReading, reading: LogReading, sessions: Sessions, goes_on: bool
) -> Iterator[LoggedCall]:
    raw = Content(stream)
    content = io.BufferedReader(raw, _SNIFFED)
    start = content.peek()
    stem = path.name.split(".")[0]
    name = f"{path.parent.name}/{stem}" if path.parent.name else stem
    if start.startswith(PARQUET):
        yield from _record_calls(_parquet(path), name, file, reading, sessions, goes_on=goes_on)
        return
    if not start.strip(b" \t\r\n\0"):
        reason = f"cannot be unpacked: {raw.damage}" if raw.damage else "is empty"
    else:
        reason = refused_kind(start, path.name) or _binary(start)
    if reason:
        reading.note_bad(file, "file", reason)
        return
    ending = _ending(path)
    kind = layout.layout_of(ending, start)
    if kind == "text":
        yield from _text_calls(content, file, reading, name)
    else:
        found = {
            "lines": lambda: layout.lines(content),
            "log": lambda: layout.lines(content, is_log=True),
            "values": lambda: layout.values(content),
            "table": lambda: layout.table(content, ending),
            "events": lambda: layout.events(content),
        }[kind]()
        yield from _record_calls(found, name, file, reading, sessions, goes_on=goes_on, are_chunks=kind == "events")
    if raw.damage:
        reading.note_bad(file, "end of the file", f"the file ends early: {raw.damage}")


def _record_calls(
    found: Iterator[Value],
    name: str,
    file: FileReading,
    reading: LogReading,
    sessions: Sessions,
    *,
    goes_on: bool,
    are_chunks: bool = False,
) -> Iterator[LoggedCall]:
    """The calls of a file's values: each is a record, has several, or is a part of a session, which another file of the
    folder may go on with. The file's name stands for sessions that have none."""
    for where, value, is_alone in found:
        if reading.is_late:
            break
        reading.on_value()
        if isinstance(value, Exception):
            _note(reading, file, where, value)
            continue
        try:
            held = list(records_in(value, where))
        except _MALFORMED as error:
            _note(reading, file, where, error)
            continue
        for place, record in held:
            try:
                part = "stream" if are_chunks and isinstance(record, dict) else part_of(record)
                if part is not None:
                    file.records += 1
                    for form, call in sessions.add(record, part, name, is_alone):
                        file.formats[form] += 1
                        yield call
                    continue
                if reading.has_twice(record):
                    reading.account.note_left_out("output", "record that the log has twice")
                    continue
                form, calls = calls_of(record, name if is_alone else f"{name}:{place}", reading.account)
            except _MALFORMED as error:
                _note(reading, file, place, error)
                continue
            file.records += 1
            file.formats[form] += 1
            yield from calls
    yield from _session_calls(file, reading, sessions, goes_on)


def _session_calls(file: FileReading, reading: LogReading, sessions: Sessions, goes_on: bool) -> Iterator[LoggedCall]:
    is_done = False
    while not is_done:
        try:
            for form, call in sessions.finish(goes_on):
                file.formats[form] += 1
                yield call
            is_done = True
        except _MALFORMED as error:
            # That session is lost; the others of the file are finished in the next round.
            _note(reading, file, "end of the file", error)


def _note(reading: LogReading, file: FileReading, where: str, error: Exception) -> None:
    if isinstance(error, NoAnswerError):
        reading.account.note_skipped(str(error))
    else:
        reason = str(error) if isinstance(error, ValueError) else f"is malformed ({type(error).__name__})"
        reading.note_bad(file, where, reason)


def _ending(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    # Programs that rotate logs add numbers and dates.
    while suffixes and (suffixes[-1] in COMPRESSED or re.fullmatch(r"\.[\d_-]+", suffixes[-1])):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _binary(start: bytes) -> str:
    """Why the content is no text; "" if it may be one. Files that were written in a crash may have zeros at their ends."""
    text = start.rstrip(b"\0")
    if len(text) == len(start) and b"\0" not in start or text.lstrip()[:1] in (b"{", b"["):
        return ""
    try:
        is_text = b"\0" not in text and bool(text.decode("utf-8"))
    except UnicodeDecodeError:
        is_text = False
    return "" if is_text else "is binary data, neither JSON nor text"


def _parquet(path: Path) -> Iterator[Value]:
    """The rows of a Parquet file."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        yield Value("file", ValueError(refused_kind(PARQUET, path.name)))
        return
    number = 0
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=_ROWS):
        for row in batch.to_pylist():
            number += 1
            yield Value(f"row {number}", row)


def _text_calls(content: IO[bytes], file: FileReading, reading: LogReading, name: str) -> Iterator[LoggedCall]:
    """The text as one output, or as several that are cut at line ends if it is long."""
    labels = Labels(session=name)
    rest, is_first, ended = b"", True, False
    while True:
        while not ended and len(rest) < 2 * _TEXT_PART:
            more = content.read(layout.CHUNK)
            ended = not more
            rest += more
        if not rest.strip() or reading.is_late:
            return
        cut = len(rest) if len(rest) <= 2 * _TEXT_PART else rest.rfind(b"\n", 0, _TEXT_PART) + 1 or _TEXT_PART
        try:
            text = rest[:cut].decode("utf-8")
        except UnicodeDecodeError as error:
            if is_first:
                reading.note_bad(file, "file", f"is not UTF-8 text: {error.reason} at byte {error.start}")
                return
            text = rest[:cut].decode("utf-8", "replace")
        if is_first:
            file.records += 1
            file.formats["text"] += 1
        reading.account.note_read("output", len(text))
        yield LoggedCall((), "text\n", text, labels)
        rest, is_first = rest[cut:], False
