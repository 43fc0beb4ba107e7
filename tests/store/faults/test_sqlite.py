"""An SQLite file fails while two replicas use it: requests continue, and no finished output is lost."""

from __future__ import annotations

import random
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fault_case import FaultCase, drafts, stored
from replicas import SCOPE, A, B
from store_case import C

from agentspec.errors import StoreError
from agentspec.store import Store, open_store

# This process makes all kinds of writes and reports each output once its append has returned.
WRITER = """
import random, sys, time
import numpy as np
from agentspec.store import Scope, open_store
from agentspec.store.codec import Codec
from agentspec.store.records import OutputRecord
from store_case import A, B, C
first = int(sys.argv[2])
scope = Scope(model="m", tokenizer="t")
store, codec, chance = open_store(sys.argv[1], scope), Codec(scope), random.Random(first)
for number in range(first, first + 1_000_000):
    tokens = np.arange(chance.randrange(1, 5000), dtype=np.int32)
    store.append([(A, codec.encode(A, OutputRecord(number, "r", time.time(), 0, tokens))), (C, b"x")])
    print(number, flush=True)
    if number % 5 == 0:
        store.write_segment(B, "s", [bytes(chance.randrange(100_000)) for _ in range(3)])
        store.write_manifest(B, b"m", ["s"])
    if number % 7 == 0:
        store.append([(B, bytes(chance.randrange(100_000)))] * 3)
        store.trim(B, max_bytes=50_000)
        store.compact()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite3"


def opens(path: Path) -> Callable[[], Store]:
    return lambda: open_store(f"sqlite:///{path}", SCOPE, timeout=0.5)


def remove(path: Path) -> None:
    # Remove the database file last: a replica may create a new one, with its own side files, as soon as it is gone.
    for suffix in ("-wal", "-shm", ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


HELPERS = Path(__file__).parents[2] / "helpers"


def test_writers_killed_at_any_moment(path: Path) -> None:
    chance = random.Random(0)
    told: set[int] = set()
    for life in range(12):
        first = 1 + life * 1_000_000
        words = [sys.executable, "-P", "-c", WRITER, f"sqlite:///{path}", str(first)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(HELPERS)})
        assert process.stdout is not None
        told |= {int(process.stdout.readline()) for _ in range(chance.randrange(1, 20))}
        # The process is killed at a random moment of its work.
        time.sleep(chance.uniform(0.0, 0.01))
        process.kill()
        told |= {int(line) for line in process.stdout if line.endswith("\n")}
        process.stdout.close()
        process.wait()
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
        store = open_store(f"sqlite:///{path}", SCOPE)
        there = stored(store)
        assert told <= set(there)
        assert max(there.values()) == 1
        # A batch is appended whole or not at all.
        assert len(store.scan(C)) == len(there)
        if store.manifest(B) is not None:
            assert len(list(store.segment(B, "s"))) == 3
        store.close()


def test_locked_by_another_process(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with FaultCase(opens(path)) as case:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        case.fails()
        # The server's log names the reason.
        case.until(lambda: re.search(r"keeps failing \(.* is locked by another process", caplog.text))
        other.execute("COMMIT")
        other.close()
        case.recovers()


def test_a_full_disk_that_gets_room(tmp_path: Path, small_disk: Path) -> None:
    with FaultCase(opens(small_disk / "store.sqlite3")) as case:
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(1 << 16))
        case.fails()
        filler.unlink()
        case.recovers()
        store = sqlite3.connect(small_disk / "store.sqlite3")
        assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small disk needs root: {mounted.stderr.decode(errors='replace').strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_file_that_may_not_grow_and_then_may(path: Path) -> None:
    with FaultCase(opens(path)) as case:
        set_limit(case, 1)
        case.fails()
        set_limit(case, 1 << 30)
        case.recovers()


def set_limit(case: FaultCase, num_pages: int) -> None:
    """Limits the file's size for the connection that appends. The limit cannot be below the current size."""
    store = case.one.store
    store._file.read(lambda connection: connection.execute(f"PRAGMA max_page_count = {num_pages}").fetchone())  # type: ignore[attr-defined]


def test_deleted(path: Path) -> None:
    with FaultCase(opens(path)) as case:
        remove(path)
        case.mark()
        case.until(lambda: case.health()["resets"] == 1)
        case.recovers()
        assert drafts(case.one, 0)
        assert drafts(case.other, 0)


def test_deleted_without_the_files_beside_it(path: Path) -> None:
    with FaultCase(opens(path)) as case:
        path.unlink()
        case.until(lambda: case.health()["resets"] == 1)
        case.mark()
        case.recovers()


def test_replaced_by_an_older_copy(path: Path, tmp_path: Path) -> None:
    with FaultCase(opens(path)) as case:
        copy = tmp_path / "copy"
        with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
            source.backup(target)
        source.close()
        target.close()
        case.shared()
        remove(path)
        copy.rename(path)
        case.until(lambda: case.health()["resets"] == 1)
        case.mark()
        case.recovers()


@pytest.mark.parametrize("how", ["header", "middle", "truncated", "text"])
def test_damaged_under_replicas_and_then_moved_away(path: Path, how: str) -> None:
    with FaultCase(opens(path)) as case:

        def is_felt() -> bool:
            # Empty the write-ahead log first: its pages would hide the damage, and the next checkpoint would repair it.
            with suppress(StoreError):
                case.view.compact()
            damage(path, how)
            return not case.health()["connected"]

        case.until(is_felt)
        assert "damaged or no SQLite database" in case.health()["last_error"]["message"]
        case.goes_on()
        remove(path)
        case.mark()
        case.recovers()
        assert drafts(case.one, 0)


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "header":
        content[:100] = b"\xff" * 100
    elif how == "middle":
        content[8192:] = b"\xff" * (len(content) - 8192)
    elif how == "truncated":
        del content[8192 + 100 :]
    else:
        content = bytearray(b"no database at all\n" * 1000)
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


@pytest.mark.parametrize("how", ["header", "middle", "truncated", "text"])
def test_damaged_at_the_start_is_said_and_left_alone(path: Path, how: str) -> None:
    with FaultCase(opens(path)) as case:
        case.goes_on(50)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    damage(path, how)
    content = path.read_bytes()
    with pytest.raises(StoreError, match=r"store\.sqlite3 is damaged or no SQLite database.*move it") as caught:
        use(opens(path))
    assert str(path) in str(caught.value)
    assert path.read_bytes()[8192 + 100 :] == content[8192 + 100 :]


def use(open_it: Callable[[], Store]) -> None:
    store = open_it()
    try:
        stored(store)
        store.append([(A, bytes(10_000))])
    finally:
        store.close()
