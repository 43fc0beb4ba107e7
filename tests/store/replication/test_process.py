"""The store's threads run in a process of their own, which may end at any time and loses nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replicas import SCOPE, A, B, Replica, until

from agentspec.config import EngineConfig
from agentspec.engine import Engine
from agentspec.errors import StoreUnavailableError
from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.store.base import Store
from agentspec.store.codec import Codec
from agentspec.store.records import OutputRecord
from agentspec.store.replication import remote
from agentspec.store.replication.process import RemoteEngine
from agentspec.store.replication.remote import SharingProcess
from agentspec.store.urls import open_store

pytestmark = pytest.mark.redis

CODEC = Codec(SCOPE)


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[Store]:
    with closing(open_store(redis_server.url, SCOPE)) as opened:
        yield opened


def process_of(replica: Replica) -> subprocess.Popen[bytes]:
    assert isinstance(replica.sharing, SharingProcess) and replica.sharing._process is not None
    return replica.sharing._process


def written(store: Store, namespace: str = A) -> list[int]:
    records = [CODEC.decode(namespace, entry.data) for entry in store.scan(namespace, max_bytes=1 << 30)]
    return [record.output_id for record in records if isinstance(record, OutputRecord)]


def test_a_snapshot_has_what_was_added_before_it() -> None:
    class Calls(list[str]):
        def call(self, name: str, *arguments: Any) -> Any:
            self.append(name)
            return [] if name == "add_all" else ([], np.zeros(0, np.uint64), False, False)

    calls: Any = Calls()
    engine = RemoteEngine(calls, EngineConfig())
    engine.add(A, 1, np.array([5, 6], np.int32), num_prompt_tail=1, time=0)
    engine.snapshot(A)
    assert calls == ["add_all", "snapshot"]


def test_replicas_share_and_a_restarted_one_has_its_own(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[int] = []
    add = Engine.add

    def noting_add(engine: Engine, namespace: str, output_id: int, *args: Any, **kwargs: Any) -> bool:
        added.append(output_id)
        return add(engine, namespace, output_id, *args, **kwargs)

    monkeypatch.setattr(Engine, "add", noting_add)
    with Replica.beside(store.url) as one, Replica.beside(store.url) as other:
        ids = [one.finish(f"r{number}", [number, 6, 7, 8]) for number in range(20)]
        until(lambda: other.num_outputs() == 20)
        assert other.drafts([5]) == one.drafts([5]) == [6, 7, 8]
        assert other.drafts([5], B) == []
        own = other.finish("own", [9, 8])
        until(lambda: one.num_outputs() == 21)
        assert other.num_outputs() == 21
        # Nobody gets back what it wrote.
        assert sorted(added) == sorted([*ids, own])
        until(lambda: other.sharing.health()["received_outputs"] == 20)
        assert one.sharing.health()["delivered_outputs"] == 20
        # No thread of the scheduler's process writes to or reads from Redis.
        names = {thread.name for thread in threading.enumerate()}
        assert not names & {f"agentspec-store-{name}" for name in ("writer", "follower", "keeper")}
    assert sorted(written(store)) == sorted([*ids, own])
    with Replica.beside(store.url) as again:
        assert again.num_outputs() == 21
        assert again.drafts([5]) == [6, 7, 8]
        assert again.sharing.health()["loaded_outputs"] == 21


def test_a_snapshot_reaches_the_store_and_the_next_server(store: Store) -> None:
    rng = np.random.default_rng(0)
    outputs = [rng.integers(1, 900, 50).tolist() for _ in range(20)]
    with Replica.beside(store.url) as first:
        for number, output in enumerate(outputs):
            first.finish(f"r{number}", output)
        first.engine.flush()
        while not (data := store.manifest(A)) or not CODEC.decode_manifest(A, data).segments:
            first.sharing.keep_now()
        expected = [first.drafts(output[:3]) for output in outputs[:5]]
    in_snapshot = sum(ref.num_outputs for ref in CODEC.decode_manifest(A, data).segments)
    assert in_snapshot >= 10
    store.trim(A, max_bytes=0)
    with Replica.beside(store.url) as second:
        assert second.num_outputs() >= in_snapshot
        assert [second.drafts(output[:3]) for output in outputs[:5]] == expected


def test_a_process_that_is_killed_loses_nothing(store: Store, redis_server: RedisServer) -> None:
    with Replica.beside(store.url) as one, Replica.beside(store.url) as other:
        reports: list[dict[str, Any]] = []
        one.sharing.on_health(reports.append)
        ids = [one.finish("before", [5, 6, 7])]
        until(lambda: other.num_outputs() == 1)
        until(lambda: one.sharing.health()["delivered_outputs"] == 1)
        redis_server.pause()
        try:
            ids += [one.finish(f"while-{number}", [number, 1, 2], is_delivered=False) for number in range(20)]
            # Until the process has taken some of them.
            time.sleep(0.5)
            killed = process_of(one)
            killed.kill()
            killed.wait()
            ids.append(one.finish("after", [40, 41, 42], is_delivered=False))
        finally:
            redis_server.resume()
        assert one.sharing.flush(60.0)
        until(lambda: other.num_outputs() == len(ids))
        assert process_of(one).pid != killed.pid
        # What the process had sent may be there twice.
        assert set(written(store)) == set(ids)
        # The new process gives the engine what it lacks, and nothing that it has.
        other.finish("of the other", [70, 71, 72])
        until(lambda: one.drafts([70]) == [71, 72])
        assert one.num_outputs() == len(ids) + 1
        # The counts go on from those of the process that ended.
        until(lambda: one.sharing.health()["delivered_outputs"] >= len(ids))
        # Who listens hears that the process was away, and that it is back.
        until(lambda: reports[-1]["connected"] and reports[-1]["errors"] >= 1)
        assert [report["connected"] for report in reports].count(False) >= 1


def test_a_process_that_cannot_be_started_at_once_is_started_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(errno.ENOMEM, "Cannot allocate memory"), OSError(errno.EMFILE, "Too many open files")]
    popen = subprocess.Popen

    def failing_popen(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        if failures:
            raise failures.pop()
        return popen(*args, **kwargs)

    with Replica.beside(store.url) as one:
        monkeypatch.setattr(subprocess, "Popen", failing_popen)
        process_of(one).kill()
        output_id = one.finish("r", [5, 6, 7])
        assert not failures
    assert written(store) == [output_id]


def test_a_process_of_another_version_is_not_used(
    store: Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with Replica.beside(store.url) as one:
        monkeypatch.setattr(remote, "__version__", "0.0.1")
        process_of(one).kill()
        one.finish("r", [5, 6, 7], is_delivered=False)
        until(lambda: "agentspec 0.0.1 was replaced by" in capfd.readouterr().err)
        assert one.drafts([5]) == [6, 7]
        health = one.sharing.health()
        assert not health["connected"] and health["queued_outputs"] == 1
        monkeypatch.undo()
        assert one.sharing.flush(30.0)
    assert len(written(store)) == 1


def test_a_process_that_waits_for_its_store_ends_with_the_server(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def noting_popen(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*args, **kwargs))
        return started[-1]

    with Replica.beside(server.url) as one:
        server.stop()
        monkeypatch.setattr(subprocess, "Popen", noting_popen)
        process_of(one).kill()
        until(lambda: started)
        time.sleep(1.0)
        one.sharing.close(0.5)
        assert [process.poll() is None for process in started] == [False]


def test_an_engine_cleared_while_the_process_is_at_work_hides_nothing(store: Store) -> None:
    with Replica.beside(store.url, keep_seconds=0.1) as one:
        for number in range(5):
            one.finish(f"r{number}", list(range(number, number + 50)))
        one.write_snapshots()
        manifest = store.manifest(A)
        assert isinstance(one.sharing, SharingProcess) and one.sharing._commands is not None
        # As long as a call takes, such as a deletion.
        with one.sharing._commands._lock:
            one.sharing.engine_cleared()
            one.engine.clear()
            one.finish("new", list(range(100, 180)))
            one.engine.flush()
            time.sleep(1.0)
        assert store.manifest(A) == manifest is not None


def test_a_deleted_tenant_is_forgotten_everywhere(store: Store) -> None:
    with Replica.beside(store.url) as one, Replica.beside(store.url) as other:
        one.finish("a", [5, 6, 7])
        one.finish("b", [5, 8, 9], B)
        until(lambda: other.num_outputs() == 2)
        assert other.sharing.forget(A).entries == 1
        until(lambda: one.num_outputs() == other.num_outputs() == 1)
        assert one.drafts([5]) == other.drafts([5]) == []
        assert one.drafts([5], B) == other.drafts([5], B) == [8, 9]
        assert written(store) == []


def test_an_output_that_the_engine_refuses_is_counted_and_others_are_added(store: Store) -> None:
    with Replica.beside(store.url, vocab_size=100) as small, Replica.beside(store.url) as large:
        large.finish("large", [5, 600], is_delivered=False)
        large.finish("small", [5, 60])
        until(lambda: small.num_outputs() == 1)
        until(lambda: small.sharing.health()["skipped_records"] == 1)
        assert small.drafts([5]) == [60]


def test_nothing_waits_for_a_process_that_hangs(store: Store) -> None:
    with Replica.beside(store.url) as one:
        process = process_of(one)
        process.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            one.finish("r", [5, 6, 7], is_delivered=False)
            one.sharing.engine_cleared()
            health = one.sharing.health()
            assert time.monotonic() - began < 5.0
            assert health["queued_outputs"] == 1
        finally:
            process.send_signal(signal.SIGCONT)
        assert one.sharing.flush(30.0)
        # An answer that came too late is not taken for the next one.
        until(lambda: one.sharing.health()["delivered_outputs"] == 1)
        assert one.sharing.forget(A).entries == 1
    assert process.returncode == 0


def test_the_process_ends_with_the_server(store: Store, tmp_path: Path) -> None:
    script = (
        "import os, sys; sys.path[:0] = sys.argv[2:]\n"
        "from replicas import Replica\n"
        "replica = Replica.beside(sys.argv[1]).__enter__()\n"
        "print(replica.sharing._process.pid, flush=True)\n"
        "os._exit(3)\n"
    )
    helpers = str(Path(__file__).parents[2] / "helpers")
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, store.url, helpers], stdout=subprocess.PIPE, timeout=60, check=False
    )
    assert done.returncode == 3
    pid = int(done.stdout)

    def has_ended() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return f"{pid} (python) Z" in Path(f"/proc/{pid}/stat").read_text()

    until(has_ended)


def test_a_store_that_cannot_be_opened_is_an_error_of_the_start() -> None:
    with pytest.raises(StoreUnavailableError, match="redis://127.0.0.1:9"):
        Replica.beside("redis://127.0.0.1:9").__enter__()
