"""Runs model-written SQL on a SQLite file, read-only and with limits on time, rows and memory."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

Cell = str | int | float | bytes | None

_ALLOWED_ACTIONS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
# Functions of some SQLite builds that reach outside the database.
_REFUSED_FUNCTIONS = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}
# The time limit is checked between instructions and cannot stop a single function call. A limit on the size of values
# bounds the time of a call.
_MAX_VALUE_BYTES = 1_000_000
_HEAP_BYTES = 256_000_000
_MAX_PATTERN_BYTES = 1_000
_INSTRUCTIONS_PER_CHECK = 1_000


@dataclass(frozen=True)
class Execution:
    """The result of one statement. `error` is empty on success. `truncated` says that rows beyond a limit were cut."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    truncated: bool = False
    error: str = ""

    @property
    def ok(self) -> bool:
        """True if the statement ran."""
        return not self.error


def execute(
    path: Path, sql: str, *, timeout_s: float = 2.0, max_rows: int = 10_000, max_bytes: int = 16_000_000
) -> Execution:
    """Run one SELECT on the database at `path`. Failures are returned as `Execution.error`, never raised.

    The file is opened read-only, and an authorizer permits only reading, so that ATTACH, PRAGMA and writes fail.
    `max_bytes` limits the returned rows. SQLite's own memory has one limit for all connections of the process, which
    this function lowers and never raises.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with closing(connect_read_only(path)) as connection:
            connection.execute(f"PRAGMA hard_heap_limit = {_HEAP_BYTES}").close()
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _MAX_PATTERN_BYTES)
            connection.set_authorizer(_authorize)
            connection.set_progress_handler(lambda: int(time.monotonic() > deadline), _INSTRUCTIONS_PER_CHECK)
            with closing(connection.execute(sql)) as cursor:
                if cursor.description is None:
                    return Execution(error="the statement returns no columns")
                columns = tuple(column[0] for column in cursor.description)
                rows: list[tuple[Cell, ...]] = []
                size = 0
                for row in cursor:
                    if len(rows) == max_rows:
                        return Execution(columns, tuple(rows), True)
                    size += sum(len(cell) if isinstance(cell, str | bytes) else 8 for cell in row)
                    if size > max_bytes:
                        return Execution(error=f"stopped at {max_bytes:g} bytes of rows")
                    rows.append(row)
    except MemoryError:
        return Execution(error=f"stopped at {_HEAP_BYTES:g} bytes of memory")
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        interrupted = "interrupted" in str(error)
        return Execution(error=f"stopped after {timeout_s:g} s" if interrupted else str(error))
    return Execution(columns, tuple(rows))


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open an existing database for reading. Bytes that are not UTF-8 are replaced. Raises sqlite3.Error if there is no
    such file, or it cannot be opened."""
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    return connection


def _authorize(action: int, _first: str | None, second: str | None, *_: object) -> int:
    if action not in _ALLOWED_ACTIONS:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _REFUSED_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK
