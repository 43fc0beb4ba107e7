"""The SQLite file behind a store: how it is opened, its schema, and what its errors mean.

Schema, version 1 (PRAGMA user_version; PRAGMA application_id tells that the file is agentspec's):

    models    model -> tokenizer
    scopes    a scope's number in this file, its epoch (random; another value means other contents), its lease
    entries   all logs of all scopes; positions count over the whole file and are never reused
    manifests one for each namespace
    segments  num_chunks is NULL while a segment is written; touched: time of its last chunk, in seconds since 1970
    chunks    the chunks of segments; deleted with their segment
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from agentspec.errors import StoreError, StoreUnavailableError
from agentspec.store.base import Scope

VERSION = 1
_APPLICATION = 0x61677370
_PAGE_BYTES = 8192
_WAL_LIMIT_BYTES = 64 << 20

_SCHEMA = (
    "CREATE TABLE models (model TEXT PRIMARY KEY, tokenizer TEXT NOT NULL)",
    """CREATE TABLE scopes (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, epoch TEXT NOT NULL,
        owner TEXT NOT NULL DEFAULT '', leased_at REAL NOT NULL DEFAULT 0, leased_seconds REAL NOT NULL DEFAULT 0)""",
    """CREATE TABLE entries (position INTEGER PRIMARY KEY AUTOINCREMENT, scope INTEGER NOT NULL,
        namespace TEXT NOT NULL, time REAL NOT NULL, num_bytes INTEGER NOT NULL, data BLOB NOT NULL)""",
    "CREATE INDEX entries_of_namespace ON entries (scope, namespace, position, time, num_bytes)",
    """CREATE TABLE manifests (scope INTEGER NOT NULL, namespace TEXT NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (scope, namespace))""",
    """CREATE TABLE segments (number INTEGER PRIMARY KEY AUTOINCREMENT, scope INTEGER NOT NULL,
        namespace TEXT NOT NULL, name TEXT NOT NULL, num_chunks INTEGER, num_bytes INTEGER NOT NULL,
        touched REAL NOT NULL)""",
    """CREATE UNIQUE INDEX segments_by_name ON segments (scope, namespace, name) WHERE num_chunks IS NOT NULL""",
    """CREATE TABLE chunks (segment INTEGER NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (segment, number))""",
    """CREATE TRIGGER chunks_go_with_segments AFTER DELETE ON segments
        BEGIN DELETE FROM chunks WHERE segment = old.number; END""",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)

_T = TypeVar("_T")


class SqliteFile:
    """One connection to a store's file. Not thread-safe. Notices when another file has replaced it."""

    def __init__(self, path: Path, timeout: float, *, create: bool = True) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.identity = (0, 0)
        """Device and inode of the open file, by which a replaced or removed file is noticed."""
        self._timeout = timeout
        self._connection: sqlite3.Connection | None = None
        self._num_opened = 0
        with _mapped_errors(self):
            self._open(create)

    def read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Runs `work` in a transaction that reads one state of the file, and returns its result."""
        with _mapped_errors(self), _transaction(self._current(), "BEGIN") as connection:
            return work(connection)

    def write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Runs `work` in an exclusive write transaction, which is done whole or not at all, and returns its result."""
        with _mapped_errors(self), _transaction(self._current(), "BEGIN IMMEDIATE") as connection:
            return work(connection)

    def version(self) -> tuple[int, int]:
        """Changes whenever another connection has written, and when the file is opened again after an error."""
        with _mapped_errors(self):
            number: int = self._current().execute("PRAGMA data_version").fetchone()[0]
            return self._num_opened, number

    def num_bytes(self) -> int:
        """The size of the file and of its write-ahead log."""
        with _mapped_errors(self):
            connection = self._current()
            pages: int = connection.execute("PRAGMA page_count").fetchone()[0]
            page: int = connection.execute("PRAGMA page_size").fetchone()[0]
        wal = self.path.with_name(self.path.name + "-wal")
        return pages * page + (wal.stat().st_size if wal.exists() else 0)

    def compact(self, num_pages: int = 2000) -> None:
        """Releases free pages, `num_pages` at a time so that others hardly wait, and empties the write-ahead log."""
        with _mapped_errors(self):
            connection = self._current()
            while connection.execute("PRAGMA freelist_count").fetchone()[0]:
                connection.execute(f"PRAGMA incremental_vacuum({num_pages})").fetchall()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _current(self) -> sqlite3.Connection:
        connection = self._connection
        if connection is None or self.identity != _identity(self.path):
            self.close()
            connection = self._open(create=True)
        return connection

    def _open(self, create: bool) -> sqlite3.Connection:
        if create:
            # SQLite gives the files beside it the same permissions.
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        self.identity = _identity(self.path)
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode=rw",
            uri=True,
            timeout=self._timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        # A damaged name must not keep the rows beside it from being read.
        connection.text_factory = _text
        try:
            _prepare(connection, self.path, self._timeout)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._num_opened += 1
        return connection


def register(connection: sqlite3.Connection, scope: Scope) -> int:
    """The number of a scope, which is added if it is missing."""
    row = connection.execute("SELECT number FROM scopes WHERE id = ?", (scope.id,)).fetchone()
    if row is None:
        connection.execute("INSERT OR IGNORE INTO models VALUES (?, ?)", (scope.model, scope.tokenizer))
        row = connection.execute(
            "INSERT INTO scopes (id, epoch) VALUES (?, ?) RETURNING number", (scope.id, secrets.token_hex(8))
        ).fetchone()
    number: int = row[0]
    return number


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _prepare(connection: sqlite3.Connection, path: Path, timeout: float) -> None:
    # The next two settings take effect only in a new, empty file.
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    _use_wal(connection, timeout)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
    # A read-only file fails here.
    with _transaction(connection, "BEGIN IMMEDIATE"):
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application == 0 and version == 0 and tables == 0:
            for statement in _SCHEMA:
                connection.execute(statement)
        elif application != _APPLICATION:
            raise StoreError(f"the file {path} is an SQLite database of something else; choose another path")
        elif version != VERSION:
            raise StoreError(
                f"the file {path} has the schema {version}, and this agentspec knows {VERSION}: update agentspec, or "
                "choose another path"
            )


def _use_wal(connection: sqlite3.Connection, timeout: float) -> None:
    # The busy time-out does not cover this switch.
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[sqlite3.Connection]:
    connection.execute(begin)
    try:
        yield connection
        connection.execute("COMMIT")
    finally:
        # SQLite itself may have rolled back.
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return (status.st_dev, status.st_ino)


_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_LOCKED: "is locked",
    sqlite3.SQLITE_FULL: "cannot grow, as the disk is full: make room",
    sqlite3.SQLITE_READONLY: "may only be read: make it and its folder writable",
    sqlite3.SQLITE_IOERR: "cannot be read or written now",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: it and its folder must be there and writable",
    sqlite3.SQLITE_PERM: "may not be opened: make it and its folder writable",
    sqlite3.SQLITE_NOMEM: "finds no memory",
    sqlite3.SQLITE_PROTOCOL: "is locked by another process",
    sqlite3.SQLITE_INTERRUPT: "was interrupted",
    sqlite3.SQLITE_SCHEMA: "was changed by another process",
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)


@contextmanager
def _mapped_errors(file: SqliteFile) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _UNAVAILABLE:
            if code not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL):
                file.close()
            raise StoreUnavailableError(f"the store's file {file.path} {_UNAVAILABLE[code]} ({error})") from error
        if code in _DAMAGED:
            file.close()
            raise StoreError(
                f"the store's file {file.path} is damaged or no SQLite database ({error}): move it away, "
                "the files -wal and -shm beside it first, or restore a copy; without a file, the store starts empty"
            ) from error
        raise StoreError(f"the store's file {file.path} cannot be used: {error}") from error
    except OSError as error:
        raise StoreUnavailableError(
            f"the store's file {file.path} cannot be opened ({error.strerror}): it and its folder must be there and "
            "writable"
        ) from error
