"""The store in a file of this machine: the default. Several processes may share the file."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from agentspec.errors import StoreError, StoreUnavailableError
from agentspec.store.base import CONTROL, Entry, NamespaceInfo, Scope, StoreInfo
from agentspec.store.clock import SteadyClock
from agentspec.store.rules import (
    CONTROL_SECONDS,
    UNFINISHED_SECONDS,
    check_entries,
    check_model,
    check_namespace,
    check_tenant,
    closed,
    is_namespace,
    missing_segment,
)
from agentspec.store.sqlite.file import SqliteFile, register
from agentspec.store.sqlite.reader import SqliteReader, number_of, take

_T = TypeVar("_T")

_FINISHED = "SELECT number, num_chunks FROM segments WHERE scope = ? AND namespace = ? AND name = ? AND num_chunks >= 0"


class SqlitePlace:
    """The `Place` of an sqlite:/// URL."""

    def __init__(self, path: Path, *, timeout: float, make_folder: bool = False) -> None:
        self.url = f"sqlite:///{path}"
        self._path = path
        self._timeout = timeout
        self._make_folder = make_folder

    def open(self, scope: Scope, *, create: bool = True) -> SqliteStore:
        if create and self._make_folder:
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise StoreUnavailableError(f"the folder of {self.url} cannot be made: {error}") from error
        if not create and not self._path.exists():
            raise StoreError(f"there is no store {self.url}")
        file = SqliteFile(self._path, self._timeout, create=create)

        def enter(connection: sqlite3.Connection) -> None:
            models = dict(connection.execute("SELECT model, tokenizer FROM models"))
            check_model(self.url, scope, models.get(scope.model), list(models), create=create)
            if create:
                register(connection, scope)
                connection.execute("INSERT OR IGNORE INTO models VALUES (?, ?)", (scope.model, scope.tokenizer))

        try:
            file.write(enter)
        except BaseException:
            file.close()
            raise
        return SqliteStore(file, scope, self._timeout)

    def scopes(self) -> list[Scope]:
        if not self._path.exists():
            return []
        with closing(SqliteFile(self._path, self._timeout, create=False)) as file:
            rows = file.read(lambda connection: connection.execute("SELECT model, tokenizer FROM models").fetchall())
        return [Scope(model, tokenizer) for model, tokenizer in rows]

    def delete_scope(self, scope: Scope) -> bool:
        if not self._path.exists():
            return False

        def delete(connection: sqlite3.Connection) -> bool:
            known = connection.execute(
                "DELETE FROM models WHERE model = ? AND tokenizer = ?", (scope.model, scope.tokenizer)
            ).rowcount
            row = connection.execute("DELETE FROM scopes WHERE id = ? RETURNING number", (scope.id,)).fetchone()
            if row is not None:
                for table in ("entries", "manifests", "segments"):
                    connection.execute(f"DELETE FROM {table} WHERE scope = ?", row)
            return bool(known) or row is not None

        with closing(SqliteFile(self._path, self._timeout, create=False)) as file:
            return file.write(delete)


class SqliteStore:
    """A `Store` in one SQLite file; schema and version in sqlite/file.py.

    Time-outs: a call waits up to the store's time-out (5 s) for writes of other processes and threads, then raises
    StoreUnavailableError. Readers poll for entries every 50 ms.

    Crashes: an append is one transaction, in WAL mode with synchronous=NORMAL. A killed process loses nothing once
    append() has returned. If the machine loses power, the newest entries that the system had not yet written are lost,
    some seconds at worst; the file stays sound.

    Idempotence: every call except append() may be repeated. A segment counts once it is complete. The first write after
    ten minutes removes what a dead writer left of one.

    Entries are timed by this machine's clock; a step of that clock counts only after ten minutes. Positions are decimal
    numbers.
    """

    def __init__(self, file: SqliteFile, scope: Scope, timeout: float) -> None:
        self.url = file.url
        self.scope = scope
        self._timeout = timeout
        self._file = file
        self._lock = threading.Lock()
        self._clock = SteadyClock()
        self._closed = False

    def _read(self, work: Callable[[sqlite3.Connection, int], _T]) -> _T:
        """What `work` returns, given a connection and this scope's number; it must be brief."""

        def with_scope(connection: sqlite3.Connection) -> _T:
            row = connection.execute("SELECT number FROM scopes WHERE id = ?", (self.scope.id,)).fetchone()
            return work(connection, -1 if row is None else row[0])

        with self._lock:
            return self._open_file().read(with_scope)

    def _write(self, work: Callable[[sqlite3.Connection, int], _T]) -> _T:
        with self._lock:
            return self._open_file().write(lambda connection: work(connection, register(connection, self.scope)))

    def _open_file(self) -> SqliteFile:
        if self._closed:
            raise closed(self.url)
        return self._file

    def append(self, entries: Sequence[tuple[str, bytes]]) -> None:
        check_entries(entries)
        if not entries:
            return

        def write(connection: sqlite3.Connection, scope: int) -> None:
            now = self._clock.now()
            connection.executemany(
                "INSERT INTO entries (scope, namespace, time, num_bytes, data) VALUES (?, ?, ?, ?, ?)",
                [(scope, namespace, now, len(data), data) for namespace, data in entries],
            )
            if any(namespace == CONTROL for namespace, _ in entries):
                connection.execute(
                    "DELETE FROM entries WHERE scope = ? AND namespace = ? AND time < ?",
                    (scope, CONTROL, now - CONTROL_SECONDS),
                )

        self._write(write)

    def reader(self, positions: Mapping[str, str] | None = None) -> SqliteReader:
        starts = {namespace: number_of(position) for namespace, position in (positions or {}).items()}
        if self._closed:
            raise closed(self.url)
        return SqliteReader(SqliteFile(self._file.path, self._timeout), self.scope, starts)

    def scan(self, namespace: str, after: str | None = None, max_bytes: int = 8 << 20) -> list[Entry]:
        check_namespace(namespace)
        start = 0 if after is None else number_of(after)
        return self._read(
            lambda connection, scope: take(
                connection.execute(
                    "SELECT namespace, position, CAST(data AS BLOB) FROM entries WHERE scope = ? AND namespace = ? AND position > ? "
                    "ORDER BY position",
                    (scope, namespace, start),
                ),
                max_bytes,
            )
        )

    def tail(self, namespace: str, max_bytes: int, after: str | None = None) -> tuple[str | None, int]:
        check_namespace(namespace)
        start = 0 if after is None else number_of(after)

        def find(connection: sqlite3.Connection, scope: int) -> tuple[str | None, int]:
            held = 0
            for position, num_bytes in connection.execute(
                "SELECT position, num_bytes FROM entries WHERE scope = ? AND namespace = ? AND position > ? "
                "ORDER BY position DESC",
                (scope, namespace, start),
            ):
                if held and held + num_bytes > max_bytes:
                    return str(position), held
                held += num_bytes
            return after, held

        return self._read(find)

    def namespaces(self) -> Iterator[NamespaceInfo]:
        def find(connection: sqlite3.Connection, scope: int) -> list[NamespaceInfo]:
            snapshots = dict(
                connection.execute(
                    "SELECT namespace, sum(bytes) FROM ("
                    "SELECT namespace, num_bytes AS bytes FROM segments WHERE scope = ?1 AND num_chunks >= 0 UNION ALL "
                    "SELECT namespace, length(data) FROM manifests WHERE scope = ?1) GROUP BY namespace",
                    (scope,),
                )
            )
            # Beside max(), SQLite takes the other columns from the row that has it.
            logs = connection.execute(
                "SELECT namespace, count(*), sum(num_bytes), max(position), CAST(time AS REAL) FROM entries "
                "WHERE scope = ? AND namespace <> ? GROUP BY namespace",
                (scope, CONTROL),
            )
            infos = [
                NamespaceInfo(namespace, count, num_bytes, snapshots.pop(namespace, 0), str(last), at)
                for namespace, count, num_bytes, last, at in logs
            ]
            infos += [NamespaceInfo(each, 0, 0, num_bytes, None, 0.0) for each, num_bytes in snapshots.items()]
            # A damaged row may have any name.
            return [info for info in infos if is_namespace(info.namespace)]

        return iter(self._read(find))

    def remove(self, namespace: str, positions: Sequence[str]) -> int:
        check_namespace(namespace)
        numbers = [number_of(position) for position in positions]
        return self._write(
            lambda connection, scope: (
                connection.executemany(
                    "DELETE FROM entries WHERE scope = ? AND namespace = ? AND position = ?",
                    [(scope, namespace, number) for number in numbers],
                ).rowcount
                if numbers
                else 0
            )
        )

    def remove_namespace(self, namespace: str, *, before: float | None = None) -> bool:
        check_namespace(namespace)

        def delete(connection: sqlite3.Connection, scope: int) -> bool:
            if before is not None:
                latest = connection.execute(
                    "SELECT CAST(time AS REAL) FROM entries WHERE scope = ? AND namespace = ? ORDER BY position DESC LIMIT 1",
                    (scope, namespace),
                ).fetchone()
                if latest is None or latest[0] >= before:
                    return False
            removed = 0
            for table in ("entries", "manifests", "segments"):
                statement = f"DELETE FROM {table} WHERE scope = ? AND namespace = ?"
                removed += connection.execute(statement, (scope, namespace)).rowcount
            return removed > 0

        return self._write(delete)

    def trim(self, namespace: str, *, max_bytes: int | None = None, before: float | None = None) -> int:
        check_namespace(namespace)

        def delete(connection: sqlite3.Connection, scope: int) -> int:
            removed = 0
            if before is not None:
                removed += connection.execute(
                    "DELETE FROM entries WHERE scope = ? AND namespace = ? AND time < ?", (scope, namespace, before)
                ).rowcount
            if max_bytes is not None:
                # The newest entry with which the log is too large, and all older ones.
                removed += connection.execute(
                    "DELETE FROM entries WHERE scope = ?1 AND namespace = ?2 AND position <= ("
                    "SELECT max(position) FROM (SELECT position, sum(num_bytes) OVER (ORDER BY position DESC) AS held "
                    "FROM entries WHERE scope = ?1 AND namespace = ?2) WHERE held > ?3)",
                    (scope, namespace, max_bytes),
                ).rowcount
            return removed

        return self._write(delete)

    def manifest(self, namespace: str) -> bytes | None:
        check_tenant(namespace)
        row = self._read(
            lambda connection, scope: connection.execute(
                "SELECT CAST(data AS BLOB) FROM manifests WHERE scope = ? AND namespace = ?", (scope, namespace)
            ).fetchone()
        )
        return None if row is None else row[0]

    def segment(self, namespace: str, name: str) -> Iterator[bytes]:
        check_tenant(namespace)
        row = self._read(lambda connection, scope: connection.execute(_FINISHED, (scope, namespace, name)).fetchone())
        if row is None:
            raise missing_segment(namespace, name)
        return self._chunks(namespace, name, *row)

    def _chunks(self, namespace: str, name: str, segment: int, num_chunks: int) -> Iterator[bytes]:
        for number in range(num_chunks):
            row = self._read(
                lambda connection, _, number=number: connection.execute(  # type: ignore[misc]
                    "SELECT CAST(data AS BLOB) FROM chunks WHERE segment = ? AND number = ?", (segment, number)
                ).fetchone()
            )
            if row is None:
                raise missing_segment(namespace, name)
            yield row[0]

    def write_segment(self, namespace: str, name: str, chunks: Iterable[bytes]) -> None:
        check_tenant(namespace)

        # One transaction a chunk, so that appends do not wait for a whole segment.
        def begin(connection: sqlite3.Connection, scope: int) -> int:
            now = time.time()
            # A clock that was set back must not keep what was left for ever.
            connection.execute(
                "DELETE FROM segments WHERE num_chunks IS NULL AND abs(? - touched) > ?", (now, UNFINISHED_SECONDS)
            )
            row = connection.execute(
                "INSERT INTO segments (scope, namespace, name, num_bytes, touched) VALUES (?, ?, ?, 0, ?) "
                "RETURNING number",
                (scope, namespace, name, now),
            ).fetchone()
            number: int = row[0]
            return number

        segment = self._write(begin)
        try:
            count = 0
            for count, chunk in enumerate(chunks, 1):
                self._write(lambda connection, _, row=(segment, count - 1, chunk): _add_chunk(connection, *row))  # type: ignore[misc]
            self._write(lambda connection, scope: _finish(connection, scope, namespace, name, segment, count))
        except BaseException:
            self._drop_segment(segment)
            raise

    def _drop_segment(self, segment: int) -> None:
        try:
            self._write(lambda connection, _: connection.execute("DELETE FROM segments WHERE number = ?", (segment,)))
        except StoreError:
            # It is removed when it has grown old.
            return

    def write_manifest(self, namespace: str, manifest: bytes, segments: Collection[str]) -> None:
        check_tenant(namespace)

        def write(connection: sqlite3.Connection, scope: int) -> None:
            held = dict(
                connection.execute(
                    "SELECT name, number FROM segments WHERE scope = ? AND namespace = ? AND num_chunks >= 0",
                    (scope, namespace),
                )
            )
            for name in segments:
                if name not in held:
                    raise missing_segment(namespace, name)
            connection.execute("INSERT OR REPLACE INTO manifests VALUES (?, ?, ?)", (scope, namespace, manifest))
            connection.executemany(
                "DELETE FROM segments WHERE number = ?",
                [(number,) for name, number in held.items() if name not in segments],
            )

        self._write(write)

    def lease(self, owner: str, seconds: float) -> bool:
        def ask(connection: sqlite3.Connection, scope: int) -> bool:
            now = time.time()
            # A clock that was set back must not prolong another's lease.
            taken = connection.execute(
                "UPDATE scopes SET owner = ?, leased_at = ?, leased_seconds = ? WHERE number = ? "
                "AND (owner IN ('', ?) OR ? NOT BETWEEN leased_at AND leased_at + leased_seconds)",
                (owner if seconds > 0 else "", now, max(seconds, 0.0), scope, owner, now),
            ).rowcount
            return taken > 0 and seconds > 0

        return self._write(ask)

    def compact(self) -> None:
        with self._lock:
            self._open_file().compact()

    def info(self) -> StoreInfo:
        with self._lock:
            used = self._open_file().num_bytes()
        server = f"SQLite {sqlite3.sqlite_version}"
        return StoreInfo(kind="sqlite", server=server, used_bytes=used, limit_bytes=0, time=time.time())

    def close(self) -> None:
        self._closed = True
        with self._lock:
            self._file.close()


def _add_chunk(connection: sqlite3.Connection, segment: int, number: int, chunk: bytes) -> None:
    touched = connection.execute(
        "UPDATE segments SET num_bytes = num_bytes + ?, touched = ? WHERE number = ? AND num_chunks IS NULL",
        (len(chunk), time.time(), segment),
    ).rowcount
    if not touched:
        raise StoreUnavailableError("a segment was removed while it was written, as its chunks came too slowly")
    connection.execute("INSERT INTO chunks VALUES (?, ?, ?)", (segment, number, chunk))


def _finish(
    connection: sqlite3.Connection, scope: int, namespace: str, name: str, segment: int, num_chunks: int
) -> None:
    connection.execute(
        "DELETE FROM segments WHERE scope = ? AND namespace = ? AND name = ? AND num_chunks >= 0",
        (scope, namespace, name),
    )
    finished = connection.execute(
        "UPDATE segments SET num_chunks = ? WHERE number = ? AND num_chunks IS NULL", (num_chunks, segment)
    ).rowcount
    if not finished:
        raise StoreUnavailableError("a segment was removed while it was written, as its chunks came too slowly")
