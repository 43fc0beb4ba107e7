"""Files with a record a line; and what runs write: their figures, and the settings and records that they go on from after
they were stopped."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from agentspec.errors import ConfigError

T = TypeVar("T")
READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)
"""What reading a file may raise that decompressed() has opened."""


def decompressed(file: IO[bytes], path: Path) -> IO[bytes]:
    """Opens a file's content, decompressed if the name ends in .xz or .gz."""
    if path.suffix == ".xz":
        return lzma.open(file)
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(file))
    return file


def filled_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, decompressed, with their numbers from 1. Raises one of READ_ERRORS."""
    with path.open("rb") as file:
        yield from ((number, line) for number, line in enumerate(decompressed(file, path), 1) if line.strip())


class RecordFile:
    """A file of records, which need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, parse: Callable[[dict[str, Any]], T]) -> list[T]:
        """What `parse` makes of each record, in order. A last line that is incomplete is cut off: one without an end behind
        records, or behind none the beginning of a record. Any other file stays as it is.

        Raises:
            ConfigError: The file cannot be read, or `parse` raised a ValueError, KeyError or TypeError for another line.
        """
        if not self.path.exists():
            return []
        try:
            lines = self.path.read_bytes().splitlines(keepends=True)
        except OSError as error:
            raise ConfigError(f"cannot go on from {self.path}: {error}") from error
        found = []
        for number, line in enumerate(lines, 1):
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("the line has no end")
                found.append(parse(json.loads(line)))
            except ConfigError:
                raise
            except (ValueError, KeyError, TypeError) as error:
                is_cut = number == len(lines) and not line.endswith(b"\n")
                if not is_cut or not found and not (line.startswith(b"{") and _is_torn(line)):
                    raise ConfigError(
                        f"{self.path.name}:{number} is no record of such a run: {error}; name another file"
                    ) from error
                os.truncate(self.path, sum(map(len, lines[:-1])))
        return found

    def keep(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Replaces the content. An interruption leaves either the old or the new file."""
        beside = self.path.with_name(self.path.name + ".part")
        beside.write_bytes(b"".join(map(_line, records)))
        os.replace(beside, self.path)

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a record durably, even if the machine stops right after the call."""
        with self.path.open("ab") as file:
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())


def check_settings(path: Path, settings: Mapping[str, Any], option: str) -> None:
    """Writes the settings of a run to a file, or compares them with those that an earlier run has written there. Raises
    ConfigError if one of them differs, or the file cannot be used; `option` is what names its folder."""
    now = json.loads(json.dumps(dict(settings)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
            return
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option} must be a folder that can be written, got {path.parent}: {error}") from error
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key):
            raise ConfigError(
                f"{option} {path.parent} holds a run with other settings ({key} was {before.get(key)!r}, now "
                f"{now.get(key)!r}); name a new folder, or repeat the command that began it"
            )


def write_json(path: Path | None, content: Mapping[str, Any]) -> None:
    """Writes figures to a file; None: writes nothing. Raises ConfigError if the file cannot be written."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"--json must be a file that can be written, got {path}: {error}") from error


def _is_torn(line: bytes) -> bool:
    """Whether a line is no whole JSON value."""
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n"
