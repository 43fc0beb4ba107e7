"""The store in a file: other files in its place, damage, and the state after crashes."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from store_case import SCOPE, A, B, data, drain

from agentspec.errors import ConfigError, StoreError, StoreUnavailableError
from agentspec.store import open_store, place
from agentspec.store.sqlite.reader import SqliteReader

WRITER = """
import sys
from agentspec.store import Scope, open_store
store = open_store(sys.argv[1], Scope("model", "ab" * 32))
number = 0
while True:
    store.append([("a" * 32, b"%d" % number), ("b" * 32, b"%d" % number * 1000)])
    print(number, flush=True)
    number += 1
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite3"


def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def store(path: Path) -> Iterator[Any]:
    with closing(open_store(url(path), SCOPE)) as opened:
        yield opened


@pytest.fixture
def reader(store: Any) -> Iterator[Any]:
    with closing(store.reader()) as opened:
        yield opened


def test_a_follower_in_another_process_is_fed(path: Path, store: Any, reader: Any) -> None:
    process = subprocess.Popen([sys.executable, "-P", "-c", WRITER, url(path)], stdout=subprocess.PIPE)
    entries = reader.read(20)
    process.kill()
    process.communicate()
    assert entries[0].data == b"0"


def test_a_follower_reads_what_was_written_before_it_opened_the_file_again(store: Any, reader: Any) -> None:
    store.append([(A, b"first")])
    assert len(reader.read(1)) == 1 and not reader.read(0)
    assert isinstance(reader, SqliteReader)
    reader._file.close()  # as errors of the disk do
    store.append([(A, b"second")])
    assert [entry.data for entry in reader.read(1)] == [b"second"]


def test_the_default_file_is_the_user_s_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert place("sqlite://").scopes() == []
    open_store("sqlite://", SCOPE).close()
    folder = tmp_path / "data" / "agentspec"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "store.sqlite3").stat().st_mode) == 0o600
    assert place("sqlite://").scopes() == [SCOPE]


def test_without_creating_no_file_appears(path: Path) -> None:
    with pytest.raises(StoreError, match="no store"):
        open_store(url(path), SCOPE, create=False)
    assert place(url(path)).scopes() == []
    assert not path.exists()


@pytest.mark.parametrize("wrong", ["sqlite://relative", "sqlite:///", "sqlite:////folder/"])
def test_a_url_must_name_a_file(wrong: str) -> None:
    with pytest.raises(ConfigError, match="SQLite store must"):
        open_store(wrong, SCOPE)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match=r"nowhere.*folder must be there"):
        open_store(url(tmp_path / "nowhere" / "store.sqlite3"), SCOPE)
    with pytest.raises(StoreUnavailableError, match="cannot be opened"):
        open_store(url(tmp_path), SCOPE)


def test_a_database_of_something_else_is_refused_and_left_alone(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE t (x)")
    other.commit()
    other.close()
    with pytest.raises(StoreError, match="something else"):
        open_store(url(path), SCOPE)


def test_a_newer_schema_is_refused(path: Path) -> None:
    open_store(url(path), SCOPE).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(StoreError, match=r"schema 2.*update agentspec"):
        open_store(url(path), SCOPE)


def test_a_locked_file_is_waited_for_and_then_unavailable(path: Path) -> None:
    store = open_store(url(path), SCOPE, timeout=0.2)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="locked by another process"):
        store.append([(A, b"1")])
    assert store.scan(A) == []
    other.execute("COMMIT")
    store.append([(A, b"1")])
    assert data(store.scan(A)) == [b"1"]
    other.close()
    store.close()


def test_a_full_disk_is_unavailable_and_appends_nothing_of_a_batch(path: Path, store: Any) -> None:
    store.append([(A, b"1")])
    pages = path.stat().st_size // 8192 + 8
    store._file.read(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    with pytest.raises(StoreUnavailableError, match="disk is full"):
        store.append([(A, bytes(1000))] * 1000)
    assert data(store.scan(A)) == [b"1"]
    store.append([(A, b"2")])
    assert data(store.scan(A)) == [b"1", b"2"]


def test_what_a_dead_writer_left_of_a_segment_is_removed(monkeypatch: pytest.MonkeyPatch, store: Any) -> None:

    def dying() -> Iterator[bytes]:
        yield bytes(1_000_000)
        raise ZeroDivisionError

    def num_chunks() -> int:
        rows = store._file.read(lambda connection: connection.execute("SELECT count(*) FROM chunks").fetchone())
        return int(rows[0])

    # A process that is killed does not clean up.
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(store, "_drop_segment", lambda segment: None)
        store.write_segment(A, "s", dying())
    store.write_segment(B, "other", [])
    assert num_chunks() == 1
    store._file.write(lambda connection: connection.execute("UPDATE segments SET touched = touched - 601"))
    store.write_segment(B, "other", [])
    assert num_chunks() == 0


def test_compact_gives_space_back(path: Path, store: Any) -> None:
    store.append([(A, bytes(10_000))] * 500)
    store.compact()
    before = path.stat().st_size
    store.trim(A, max_bytes=0)
    store.compact()
    assert path.stat().st_size < before / 10
    assert store.info().used_bytes < before / 10


def test_many_processes_may_create_the_file_at_once(path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-P", "-c", WRITER, url(path)], stdout=subprocess.PIPE) for _ in range(4)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"0\n"
    for writer in writers:
        writer.kill()
        writer.communicate()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entries SET namespace = CAST(x'ff61' AS TEXT) WHERE position = 2",
        "UPDATE entries SET namespace = 1.5 WHERE position = 2",
        "UPDATE entries SET data = CAST(x'ff61' AS TEXT) WHERE position = 2",
        "UPDATE entries SET data = 7 WHERE position = 2",
        "UPDATE entries SET position = 1000000 WHERE position = 2",
    ],
)
def test_a_damaged_row_costs_itself_only(path: Path, damage: str, store: Any, reader: Any) -> None:
    store.append([(A, b"1"), (A, b"2"), (A, b"3")])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(damage)
    found = [entry.data for entry in drain(reader)]
    assert (found[0], found[-1]) == (b"1", b"3") and len(found) <= 3 and all(map(bytes, found))
    store.append([(A, b"4")])
    assert data(drain(reader), A)[-1] == b"4"
    assert [info.namespace for info in store.namespaces()] == [A]
    assert {b"1", b"3", b"4"} <= {entry.data for entry in store.scan(A)}


def test_a_damaged_time_counts_as_long_ago(path: Path, store: Any) -> None:
    store.append([(A, b"1")])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE entries SET time = 'abc'")
    assert [info.last_time for info in store.namespaces()] == [0.0]
