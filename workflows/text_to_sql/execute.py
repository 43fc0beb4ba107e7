"""Runs model-written SQL on a SQLite file: read only, bounded in time, rows and memory."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

Cell = str | int | float | bytes | None

_ALLOWED_ACTIONS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_MAX_VALUE_BYTES = 1_000_000
_INSTRUCTIONS_PER_CHECK = 10_000


@dataclass(frozen=True)
class Execution:
    """What came of one statement. `error` is empty on success; `truncated` says that rows beyond the cap were cut."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    truncated: bool = False
    error: str = ""

    @property
    def ok(self) -> bool:
        """True if the statement ran."""
        return not self.error


def execute(path: Path, sql: str, *, timeout_s: float = 2.0, max_rows: int = 10_000) -> Execution:
    """Run one SELECT on the database at `path`; every failure comes back as `Execution.error`, none is raised.

    The file is opened read only and an authorizer admits reading alone, so that ATTACH, PRAGMA and writes fail.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
            connection.set_authorizer(
                lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED_ACTIONS else sqlite3.SQLITE_DENY
            )
            connection.set_progress_handler(lambda: int(time.monotonic() > deadline), _INSTRUCTIONS_PER_CHECK)
            with closing(connection.execute(sql)) as cursor:
                if cursor.description is None:
                    return Execution(error="the statement returns no columns")
                rows = cursor.fetchmany(max_rows + 1)
                columns = tuple(column[0] for column in cursor.description)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        interrupted = "interrupted" in str(error)
        return Execution(error=f"stopped after {timeout_s:g} s" if interrupted else str(error))
    return Execution(columns, tuple(rows[:max_rows]), len(rows) > max_rows)
