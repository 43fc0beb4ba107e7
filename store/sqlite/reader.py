"""Follows the logs of one scope in an SQLite file."""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Iterable

from agentspec.errors import StoreError, StoreResetError
from agentspec.store.base import Entry, Scope
from agentspec.store.sqlite.file import SqliteFile

POLL_SECONDS = 0.05


class SqliteReader:
    """A `Reader` of an SQLite store, with a connection of its own.

    Positions count over the whole file, so one number says how far all logs are read. Only where it starts behind
    given positions does it first read log by log up to the end that the file had then.
    """

    def __init__(self, file: SqliteFile, scope: Scope, starts: dict[str, int]) -> None:
        self.broken: dict[str, str] = {}
        self._file = file
        self._scope = scope
        self._closed = False
        self._begin(starts)

    def _begin(self, starts: dict[str, int]) -> None:
        self._identity = self._file.identity
        self._epoch: str | None = None
        # Everything up to here was read, but for what stands behind the starts of the logs in `_late`.
        self._position = 0
        self._starts = starts
        self._late: deque[str] = deque()
        # Of the file when all of it was read.
        self._version: tuple[int, int] | None = None

    def read(self, wait: float, max_bytes: int = 8 << 20) -> list[Entry]:
        deadline = time.monotonic() + wait
        while True:
            if self._closed:
                raise StoreError(f"the reader of {self._file.url} was closed; make another")
            version = self._file.version()
            if self._file.identity != self._identity:
                raise self._reset("was replaced")
            if version != self._version:
                entries = self._file.read(lambda connection: self._next(connection, max_bytes))
                if entries:
                    return entries
                self._version = version
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            time.sleep(min(POLL_SECONDS, left))

    def close(self) -> None:
        self._closed = True
        self._file.close()

    def _reset(self, how: str) -> StoreResetError:
        self._begin({})
        return StoreResetError(f"the store {self._file.url} {how}; reading goes on from the beginning")

    def _next(self, connection: sqlite3.Connection, max_bytes: int) -> list[Entry]:
        row = connection.execute("SELECT number, epoch FROM scopes WHERE id = ?", (self._scope.id,)).fetchone()
        scope, epoch = row or (-1, None)
        end = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'entries'").fetchone()
        last: int = end[0] if end is not None else 0
        if self._epoch is not None and epoch != self._epoch:
            raise self._reset("lost its contents")
        if last < self._position:
            raise self._reset("was replaced by an older copy")
        if self._epoch is None and self._starts:
            names = connection.execute("SELECT DISTINCT namespace FROM entries WHERE scope = ?", (scope,))
            self._late.extend(namespace for (namespace,) in names)
            self._position = last
        self._epoch = epoch
        while self._late:
            namespace = self._late[0]
            entries = take(
                connection.execute(
                    "SELECT namespace, position, CAST(data AS BLOB) FROM entries WHERE scope = ? AND namespace = ? "
                    "AND position > ? AND position <= ? ORDER BY position",
                    (scope, namespace, self._starts.get(namespace, 0), self._position),
                ),
                max_bytes,
            )
            if entries:
                self._starts[namespace] = int(entries[-1].position)
                return entries
            self._late.popleft()
        entries = take(
            connection.execute(
                "SELECT namespace, position, CAST(data AS BLOB) FROM entries WHERE scope = ? AND position > ? "
                # A damaged row may have a position that was never given away.
                "AND position <= ? ORDER BY position",
                (scope, self._position, last),
            ),
            max_bytes,
        )
        self._position = int(entries[-1].position) if entries else last
        return entries


def take(rows: sqlite3.Cursor | Iterable[tuple[str, int, bytes | None]], max_bytes: int) -> list[Entry]:
    """The first (namespace, position, data) rows: about `max_bytes` at most, but at least one row. Data that a damaged row
    lacks is empty."""
    found: list[Entry] = []
    for namespace, position, value in rows:
        data = value or b""
        if found and len(data) > max_bytes:
            break
        max_bytes -= len(data)
        found.append(Entry(namespace, str(position), data))
    return found


def number_of(position: str) -> int:
    """Raises StoreError if a position is not one of an SQLite store."""
    if not (position.isascii() and position.isdecimal() and len(position) < 19):
        raise StoreError(f"a position of an SQLite store is a decimal number below 2**63, got {position[:40]!r}")
    return int(position)
