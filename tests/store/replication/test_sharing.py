"""Engines that share a store draft from each other's finished outputs, and none drafts from deleted ones."""

from __future__ import annotations

import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replicas import SCOPE, A, B, Replica, until

from agentspec.engine import Engine, EngineStats
from agentspec.snapshot import Snapshot
from agentspec.store.base import CONTROL, NamespaceInfo, Store
from agentspec.store.codec import Codec
from agentspec.store.config import SharingConfig
from agentspec.store.records import ANY_NAMESPACE, Deletion, OutputRecord
from agentspec.store.replication.deletion import announce, delete_namespaces, delete_request
from agentspec.store.replication.sharing import Sharing
from agentspec.store.urls import open_store

CODEC = Codec(SCOPE)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:///{tmp_path}/store.sqlite3", SCOPE)) as opened:
        yield opened


class Hanging:
    """A store whose appends can hang."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.answers = threading.Event()
        self.answers.set()

    def append(self, entries: Sequence[tuple[str, bytes]]) -> None:
        assert self.answers.wait(60.0)
        self._store.append(entries)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def num_read(replica: Replica) -> int:
    """Number of log entries that a replica remembers because its snapshots may not cover them."""
    assert isinstance(replica.sharing, Sharing)
    return sum(len(log.read) + len(log.waiting) for log in replica.sharing._coverage._logs.values())


def num_entries(store: Store, namespace: str = A) -> int:
    return len(store.scan(namespace, max_bytes=1 << 30))


def test_a_long_log_neither_piles_up_nor_takes_the_mutex_of_drafts_to_look_how_far_it_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    with Replica(store) as one:
        for number in range(64):
            one.finish(f"r{number}", rng.integers(1, 1000, 4000).tolist(), is_delivered=number == 63)
    looked, waiting = [], []
    stats, add = Engine.stats, Engine.add

    def noting_stats(engine: Engine) -> EngineStats:
        looked.append(threading.current_thread().name)
        return stats(engine)

    def noting_add(engine: Engine, *args: Any, **kwargs: Any) -> bool:
        waiting.append(stats(engine).waiting_outputs)
        return add(engine, *args, **kwargs)

    monkeypatch.setattr(Engine, "stats", noting_stats)
    monkeypatch.setattr(Engine, "add", noting_add)
    with Replica(store) as other:
        assert other.num_outputs() == 64
    assert len(waiting) == 64 and max(waiting) <= 16
    assert "agentspec-store-follower" not in looked


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_restarted_server_drafts_as_before(store: Store, is_sealed: bool) -> None:
    rng = np.random.default_rng(0)
    outputs = [rng.integers(1, 40, size=30).tolist() for _ in range(40)]
    with Replica(store, max_growing_tokens=64) as first:
        for number, output in enumerate(outputs):
            first.finish(f"r{number}", output, [A, B][number % 2])
        if is_sealed:
            first.engine.flush()
            until(lambda: first.sharing.health()["queued_outputs"] == 0)
            first.sharing.keep_now()
            assert store.manifest(A) is not None
        expected = [(first.drafts([a, b]), first.drafts([a, b], B)) for a in range(1, 40, 3) for b in (1, 2)]
    assert any(drafts for pair in expected for drafts in pair)
    with Replica(store, max_growing_tokens=64) as second:
        assert second.num_outputs() == 40
        assert [(second.drafts([a, b]), second.drafts([a, b], B)) for a in range(1, 40, 3) for b in (1, 2)] == expected
        assert second.sharing.health()["loaded_outputs"] == 40


def _covered_by_snapshot(store: Store) -> int:
    """Number of the log's entries that the snapshot holds."""
    data = store.manifest(A)
    position = CODEC.decode_manifest(A, data).position if data else ""
    return [entry.position for entry in store.scan(A)].index(position) + 1 if position else 0


def test_a_snapshot_spares_the_log(store: Store) -> None:
    with Replica(store, max_growing_tokens=64) as first:
        for number in range(10):
            first.finish(f"r{number}", list(range(number, number + 50)))
        first.engine.flush()
        # The follower reads after a while what the writer has written, and a snapshot covers what was read.
        while (covered := _covered_by_snapshot(store)) < 8:
            number += 1
            first.finish(f"r{number}", list(range(number, number + 50)))
            first.write_snapshots()
            assert number < 500
        first.finish("last", [900, 901, 902])
    # The snapshot alone must restore the outputs that it covers.
    store.remove(A, [entry.position for entry in store.scan(A)][:covered])
    with Replica(store) as second:
        assert second.num_outputs() == number + 2
        assert second.drafts([900]) == [901, 902]


def test_a_snapshot_does_not_cover_what_is_read_while_it_is_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Naming a large segment takes a while."""
    snapshot = Engine.snapshot

    def slow(engine: Engine, namespace: str) -> Snapshot:
        found = snapshot(engine, namespace)
        if engine is first.engine:
            other.finish("late", [900, 901, 902])
            until(lambda: first.drafts([900]) == [901, 902])
        return found

    with Replica(store, max_growing_tokens=64) as first, Replica(store) as other:
        first.finish("sealed", list(range(100)))
        first.engine.flush()
        monkeypatch.setattr(Engine, "snapshot", slow)
        first.sharing.keep_now()
        monkeypatch.undo()
    assert store.manifest(A) is not None
    with Replica(store) as second:
        assert second.drafts([900]) == [901, 902]


def test_a_damaged_snapshot_falls_back_to_the_log(store: Store) -> None:
    with Replica(store, max_growing_tokens=64) as first:
        for number in range(5):
            first.finish(f"r{number}", list(range(number, number + 50)))
        first.write_snapshots()
    (ref, *_) = CODEC.decode_manifest(A, store.manifest(A) or b"").segments
    store.write_segment(A, ref.name, [b"garbage"])
    with Replica(store) as second:
        assert second.num_outputs() == 5
        assert second.sharing.health()["errors"] == 1
        # The replica's own snapshot replaces the damaged one.
        second.engine.flush()


def test_an_output_that_cannot_be_written_keeps_no_other_waiting(store: Store) -> None:
    with Replica(store) as one:
        one.finish("r1", [1, 2], is_delivered=False)
        one.sharing.publish(A, 7, "x" * 70_000, [0], [1, 2], 2)
        one.sharing.publish(A, 8, "r", [0], [1, -2], 2)
        one.sharing.publish(A, 9, "r", [0], [2**40], 1)
        one.finish("r2", [3, 4])
        assert num_entries(store) == 2
        health = one.sharing.health()
        assert (health["dropped_outputs"], health["delivered_outputs"], health["errors"]) == (3, 2, 3)


def test_nothing_waits_for_a_store_that_hangs(store: Store) -> None:
    hanging = Hanging(store)
    with Replica(hanging, queue_tokens=20) as one:
        hanging.answers.clear()
        one.finish("first", [1, 2, 3], is_delivered=False)
        until(lambda: one.sharing.health()["queued_tokens"] == 0)
        for number in range(10):
            one.finish(f"r{number}", [number, 50, 60], is_delivered=False)
        assert one.drafts([1, 2])[:1] == [3]
        assert one.sharing.health()["dropped_outputs"] == 5
        hanging.answers.set()
        assert one.sharing.flush(30.0)
        assert num_entries(store) == 6


def test_a_server_that_ends_while_the_store_hangs_ends_soon_and_says_what_is_lost(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    hanging = Hanging(store)
    one = Replica(hanging)
    assert one.sharing.start()
    hanging.answers.clear()
    for number in range(3):
        one.finish(f"r{number}", [number, 50, 60], is_delivered=False)
    # As if all three threads hung, and more.
    others = [threading.Thread(target=hanging.answers.wait, daemon=True) for _ in range(10)]
    for thread in others:
        thread.start()
    one.sharing._threads[:0] = others
    began = time.monotonic()
    one.sharing.close(0.5)
    assert time.monotonic() - began < 4.0
    assert f"the store {store.url} did not take 3 finished outputs before the server ended" in caplog.text
    hanging.answers.set()


def test_a_deleted_request_is_forgotten_everywhere(store: Store) -> None:
    with Replica(store) as one, Replica(store) as other:
        one.finish("r1", [5, 6, 7])
        one.finish("r2", [8, 9, 10])
        one.finish("r1", [5, 6, 7], B)
        until(lambda: other.num_outputs() == 3)
        store.append([(CONTROL, CODEC.encode(CONTROL, Deletion(A, "r1", time.time())))])
        until(lambda: one.num_outputs() == other.num_outputs() == 2)
        for replica in (one, other):
            assert replica.drafts([5]) == []
            assert replica.drafts([8]) == [9, 10]
            assert replica.drafts([5], B) == [6, 7]
        store.append([(CONTROL, CODEC.encode(CONTROL, Deletion(ANY_NAMESPACE, "r1", time.time())))])
        until(lambda: one.num_outputs() == other.num_outputs() == 1)


def test_a_start_deletes_what_a_snapshot_has_of_deleted_requests(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with Replica(store, max_growing_tokens=64) as first:
        for number in range(4):
            first.finish(f"r{number}", list(range(100 * number, 100 * number + 80)))
        first.write_snapshots()
    announce(store, CODEC, [Deletion(ANY_NAMESPACE, f"r{number}", time.time()) for number in range(2, 50)])
    deleted: list[str] = []
    delete_request = Engine.delete_request

    def noting(engine: Engine, namespace: str, request_id: str) -> int:
        deleted.append(request_id)
        return delete_request(engine, namespace, request_id)

    monkeypatch.setattr(Engine, "delete_request", noting)
    with Replica(store) as second:
        assert second.num_outputs() == 2
        assert sorted(deleted) == ["r2", "r3"]


def test_a_deleted_tenant_is_forgotten_everywhere_and_may_go_on(store: Store) -> None:
    with Replica(store, max_growing_tokens=64) as one, Replica(store) as other:
        for number in range(5):
            one.finish(f"r{number}", list(range(number, number + 50)))
        one.finish("other", [8, 9, 10], B)
        one.write_snapshots()
        until(lambda: other.num_outputs() == 6)
        # Times have a resolution of a second, so later outputs must finish in a later second.
        store.append([(CONTROL, CODEC.encode(CONTROL, Deletion(A, None, time.time())))])
        until(lambda: one.num_outputs() == other.num_outputs() == 1)
        assert other.drafts([8], B) == [9, 10]
        one.sharing.keep_now()
        assert CODEC.decode_manifest(A, store.manifest(A) or b"").segments == ()
        time.sleep(1.0)
        one.finish("new", [5, 6, 7])
        until(lambda: other.drafts([5]) == [6, 7])
    with Replica(store) as restarted:
        assert restarted.num_outputs() == 2


def test_what_was_deleted_may_be_imported_again(store: Store) -> None:
    def append(time: float) -> None:
        store.append([(A, CODEC.encode(A, OutputRecord(7, "r", time, 1, np.array([5, 6, 7], np.int32))))])

    now = time.time()
    with Replica(store) as one:
        append(now - 60.0)
        until(lambda: one.drafts([5]) == [6, 7])
        delete_namespaces(store, CODEC, [A], now)
        until(lambda: one.num_outputs() == 0)
        append(now + 1.0)
        until(lambda: one.drafts([5]) == [6, 7])
    with Replica(store) as again:
        assert again.drafts([5]) == [6, 7]


def test_what_expired_may_be_imported_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def append(time: float) -> None:
        store.append([(A, CODEC.encode(A, OutputRecord(7, "r", time, 1, np.array([5, 6, 7], np.int32))))])

    now, system_time = time.time(), time.time
    with Replica(store, ttl_seconds=1000.0) as one:
        append(now - 970.0)
        until(lambda: one.drafts([5]) == [6, 7])
        monkeypatch.setattr(time, "time", lambda: system_time() + 50.0)
        one.sharing.keep_now()
        assert one.drafts([5]) == []
        append(now)
        until(lambda: one.drafts([5]) == [6, 7])


def test_a_late_delivery_does_not_bring_back_what_was_deleted(store: Store) -> None:
    with Replica(store) as one:
        store.append([(CONTROL, CODEC.encode(CONTROL, Deletion(A, None, time.time())))])
        store.append([(CONTROL, CODEC.encode(CONTROL, Deletion(B, "gone", time.time())))])
        until(lambda: one.sharing.health()["deletions"] == 2)
        tokens = np.array([5, 6, 7], np.int32)
        late = OutputRecord(1 << 32, "r1", time.time() - 60.0, 0, tokens)
        store.append([(A, CODEC.encode(A, late))])
        until(lambda: one.sharing.health()["refused_outputs"] == 1)
        until(lambda: num_entries(store) == 0)
        # This request was writing its output when it was deleted.
        one.finish("gone", [8, 9], B)
        until(lambda: one.num_outputs() == 0)
        assert num_entries(store, B) == 0


def test_records_that_cannot_be_used_are_skipped_and_counted(store: Store) -> None:
    with Replica(store) as one:
        record = OutputRecord(7, "r", time.time(), 0, np.array([5, 2000], np.int32))
        foreign = OutputRecord(8, "r", time.time(), 0, np.array([5, 6], np.int32))
        store.append([(A, b"garbage"), (CONTROL, b"garbage"), (A, CODEC.encode(A, record))])
        store.append([(A, CODEC.encode(B, foreign))])
        store.append([(A, CODEC.encode(A, OutputRecord(9, "r", time.time(), 0, np.array([5, 6], np.int32))))])
        until(lambda: one.num_outputs() == 1)
        assert one.drafts([5]) == [6]
        assert one.sharing.health()["skipped_records"] == 4


def test_old_outputs_expire_here_and_in_the_store(store: Store) -> None:
    now = time.time()
    for number, age in enumerate((100.0, 1.0)):
        tokens = np.array([5 + 10 * number, 6], np.int32)
        store.append([(A, CODEC.encode(A, OutputRecord(number + 1, "r", now - age, 0, tokens)))])
    with Replica(store, ttl_seconds=50.0) as one:
        assert (one.drafts([5]), one.drafts([15])) == ([], [6])
    with Replica(store, ttl_seconds=2.0) as one:
        until(lambda: (one.sharing.keep_now(), one.num_outputs())[1] == 0)
        until(lambda: (one.sharing.keep_now(), list(store.namespaces()))[1] == [])


def test_an_expired_snapshot_is_removed_by_a_replica_that_writes_none(store: Store) -> None:
    with Replica(store, max_growing_tokens=64, ttl_seconds=2.0) as one:
        one.finish("old", list(range(1, 80)))
        one.write_snapshots()
        one.sharing.engine_cleared()
        time.sleep(3.5)
        one.finish("new", [5, 8, 9])
        one.sharing.keep_now()
        (info,) = store.namespaces()
        data = store.manifest(A)
        assert info.num_entries == 1
        assert data is not None
        assert CODEC.decode_manifest(A, data).segments == ()
        with Replica(store) as again:
            assert again.drafts([5]) == [8, 9]


def test_a_tenant_who_comes_back_while_its_namespace_expires_loses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = type(store).namespaces
    with Replica(store) as other, Replica(store, ttl_seconds=0.5) as one:

        def namespaces(store: Store) -> Iterator[NamespaceInfo]:
            found = list(names(store))
            other.finish("back", [5, 6, 7])
            return iter(found)

        one.finish("gone", [5, 8, 9])
        time.sleep(2.0)
        monkeypatch.setattr(type(store), "namespaces", namespaces)
        one.sharing.keep_now()
        assert num_entries(store) == 2


def test_what_expires_or_is_deleted_takes_nothing_else_out_of_the_snapshot(store: Store) -> None:
    def in_snapshot() -> int:
        data = store.manifest(A)
        assert data is not None
        return sum(ref.num_outputs for ref in CODEC.decode_manifest(A, data).segments)

    tokens = np.arange(1, 400, dtype=np.int32)
    with Replica(store, max_growing_tokens=64, ttl_seconds=50.0) as one:
        for number in range(100):
            time_finished = time.time() - (0.0 if number else 48.0)
            record = OutputRecord(number + 1, "r", time_finished, 0, np.roll(tokens, number))
            store.append([(A, CODEC.encode(A, record))])
        until(lambda: one.num_outputs() == 100)
        one.write_snapshots()
        assert in_snapshot() == 100
        # The keeper lets the old one expire and writes a snapshot while the engine still rewrites the segment.
        until(lambda: (one.sharing.keep_now(), one.engine.stats().outputs)[1] == 99)
    with Replica(store, ttl_seconds=50.0) as again:
        assert again.num_outputs() == 99
        again.write_snapshots()
        assert in_snapshot() == 99


def test_an_engine_cleared_while_snapshots_are_written_hides_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Engine.snapshot

    def cleared(engine: Engine, namespace: str) -> Snapshot:
        one.sharing.engine_cleared()
        engine.clear()
        return snapshot(engine, namespace)

    with Replica(store, max_growing_tokens=64) as one:
        for number in range(5):
            one.finish(f"r{number}", list(range(number, number + 50)))
        one.write_snapshots()
        manifest = store.manifest(A)
        one.finish("last", list(range(100, 180)))
        one.engine.flush()
        monkeypatch.setattr(Engine, "snapshot", cleared)
        one.sharing.keep_now()
        monkeypatch.undo()
        assert store.manifest(A) == manifest is not None
    with Replica(store) as restarted:
        assert restarted.num_outputs() == 6


def test_who_writes_no_snapshots_remembers_no_log_and_leaves_the_lease(store: Store) -> None:
    with Replica(store, max_growing_tokens=64) as one, Replica(store, max_growing_tokens=64) as other:
        one.sharing.keep_now()
        one.sharing.engine_cleared()
        one.engine.clear()
        for number in range(40):
            one.finish(f"r{number}", list(range(number, number + 20)), is_delivered=False)
        until(lambda: other.num_outputs() == 40)
        one.write_snapshots()
        assert num_read(one) < 8
        other.sharing.keep_now()
        assert other.sharing.health()["snapshots"] == 1
        # Nor of a namespace that the engine holds no more.
        one.engine.delete_namespace(A)
        until(lambda: (one.sharing.keep_now(), num_read(one))[1] == 0)


def test_a_lease_that_was_left_and_taken_again_brings_no_full_check(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Replica(store) as one:
        assert isinstance(one.sharing, Sharing)
        one.sharing.engine_cleared()
        one.sharing.keep_now()
        monkeypatch.delattr(type(store), "namespaces")
        one.sharing._keeper.run()


@pytest.mark.parametrize("has_lease", [False, True])
def test_a_replica_without_the_key_hides_nothing_from_those_with_it(store: Store, has_lease: bool) -> None:
    key = bytes(range(32))
    text = list(range(500, 560))

    def encrypted() -> Replica:
        replica = Replica(store, max_growing_tokens=64)
        replica.sharing = Sharing(replica.engine, store, Codec(SCOPE, key), SharingConfig(keep_seconds=1e6))
        return replica

    with encrypted() as first:
        for number in range(4):
            first.finish(f"e{number}", [number, *text])
        if has_lease:
            first.write_snapshots()
    with Replica(store, max_growing_tokens=64) as plain:
        for number in range(4):
            plain.finish(f"p{number}", list(range(number, 80)))
        until(lambda: num_read(plain) == 4)
        plain.write_snapshots()
    with encrypted() as again:
        assert again.num_outputs() == 8
        assert again.drafts(text[:3])[:3] == text[3:6]


def test_a_replica_that_cannot_read_a_deletion_does_not_write_what_it_deleted(store: Store) -> None:
    """While replicas are given a key one after another, the others cannot read what those with it write."""
    with Replica(store, max_growing_tokens=64) as plain:
        plain.finish("gone", list(range(1, 80)))
        plain.write_snapshots()
        delete_namespaces(store, Codec(SCOPE, bytes(range(32))), [A], time.time())
        until(lambda: plain.sharing.health()["skipped_records"])
        plain.finish("new", list(range(200, 280)))
        plain.write_snapshots()
        assert store.manifest(A) is None


def test_an_unreadable_record_that_comes_while_snapshots_are_written_is_not_hidden(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Engine.snapshot
    late = ""

    def newer(namespace: str) -> bytes:
        data = bytearray(CODEC.encode(namespace, OutputRecord(9, "r", time.time(), 0, np.array([5, 6], np.int32))))
        data[4] += 1
        return bytes(data[:-4]) + zlib.crc32(data[:-4]).to_bytes(4, "little")

    with Replica(store, max_growing_tokens=64) as one, Replica(store, max_growing_tokens=64) as other:

        def slow(engine: Engine, namespace: str) -> Snapshot:
            nonlocal late
            if engine is one.engine and not late:
                late = B if namespace == A else A
                store.append([(late, newer(late))])
                other.finish("later", list(range(200, 280)), late)
                until(lambda: one.num_outputs() == 3)
            return snapshot(engine, namespace)

        one.finish("a", list(range(1, 80)))
        one.finish("b", list(range(1, 80)), B)
        until(lambda: num_read(one) == 2)
        monkeypatch.setattr(Engine, "snapshot", slow)
        one.write_snapshots()
        assert [name for name in (A, B) if store.manifest(name) is None] == [late]


def test_snapshots_that_the_deletion_of_a_request_removed_are_written_again(store: Store) -> None:
    with Replica(store, max_growing_tokens=64) as one:
        one.finish("a", list(range(1, 80)))
        one.finish("b", list(range(1, 80)), B)
        one.write_snapshots()
        # Now only the snapshots have them.
        for name in (A, B):
            store.trim(name, max_bytes=0)
        assert delete_request(store, CODEC, ANY_NAMESPACE, "a", time.time()).snapshots == 2
        until(lambda: one.num_outputs() == 1)
        one.write_snapshots()
    with Replica(store) as again:
        assert again.drafts([1], B)[:3] == [2, 3, 4]
        assert again.drafts([1], A) == []


def test_what_was_deleted_does_not_come_back_with_an_older_copy_of_the_store(store: Store, tmp_path: Path) -> None:
    path, copy = tmp_path / "store.sqlite3", tmp_path / "copy.sqlite3"
    with Replica(store, max_growing_tokens=64) as one:
        one.finish("gone", list(range(1, 80)))
        one.finish("kept", list(range(1, 80)), B)
        one.write_snapshots()
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        delete_namespaces(store, CODEC, [A], time.time())
        until(lambda: one.num_outputs() == 1)
        one.sharing.keep_now()
        for file in (path, *tmp_path.glob("store.sqlite3-*")):
            file.unlink()
        copy.rename(path)
        until(lambda: one.sharing.health()["resets"] == 1)
        until(lambda: num_entries(store) == 0)
        one.write_snapshots()
    with closing(open_store(store.url, SCOPE)) as restored, Replica(restored) as again:
        assert again.drafts([1], B)[:3] == [2, 3, 4]
        assert again.drafts([1], A) == []


def test_one_replica_at_a_time_writes_snapshots(store: Store) -> None:
    with Replica(store, max_growing_tokens=64) as one, Replica(store, max_growing_tokens=64) as other:
        one.finish("r", list(range(1, 80)))
        until(lambda: other.num_outputs() == 1)
        one.sharing.keep_now()
        other.sharing.keep_now()
        assert (one.sharing.health()["snapshots"], other.sharing.health()["snapshots"]) == (1, 0)


def test_the_newest_namespaces_are_loaded_where_there_is_no_room_for_all(store: Store) -> None:
    rng = np.random.default_rng(0)
    names = [f"{number:032x}" for number in range(80)]
    with Replica(store) as first:
        for half in (names[:40], names[40:]):
            for name in half:
                first.finish(f"r-{name}", rng.integers(1, 999, size=1000).tolist(), name, is_delivered=False)
            assert first.sharing.flush(30.0)
    second = Replica(store)
    object.__setattr__(second.engine.config, "budget_bytes", 64_000)
    with second:
        present = {space.name for space in second.engine.namespaces()}
        assert present > set(names[40:]) and len(present) == 64
        # Later outputs are shared, also in the other namespaces.
        left_out = next(name for name in names if name not in present)
        with Replica(store) as third:
            third.finish("late", [5, 6, 7], left_out)
            until(lambda: second.drafts([5], left_out) == [6, 7])


@pytest.mark.parametrize("is_sealed", [False, True])
def test_one_long_log_leaves_the_others_their_room(store: Store, is_sealed: bool) -> None:
    rng = np.random.default_rng(0)
    quiet = [f"{number:032x}" for number in range(4)]
    outputs = [rng.integers(1, 999, size=1000).tolist() for _ in range(40)]
    own = {name: rng.integers(1, 999, size=1000).tolist() for name in quiet}
    with Replica(store, max_growing_tokens=2048) as first:
        for name in quiet:
            first.finish(f"r-{name}", own[name], name)
        for number, output in enumerate(outputs):
            first.finish(f"r{number}", output)
        if is_sealed:
            first.write_snapshots()
    manifest = store.manifest(A)
    assert (manifest is not None) == is_sealed
    log_bytes = {info.namespace: info.log_bytes for info in store.namespaces()}
    second = Replica(store)
    # The log alone would fill this by what it is estimated to take.
    object.__setattr__(second.engine.config, "budget_bytes", 10 * log_bytes[A])
    with second:
        assert {name: second.drafts(own[name][:20], name)[:1] for name in quiet} == {
            name: own[name][20:21] for name in quiet
        }
        # Of the long log, the latest outputs.
        kept = [second.drafts(output[:20])[:1] == output[20:21] for output in outputs]
        assert kept[-1] and (is_sealed or not kept[0])
        assert kept == sorted(kept) and sum(kept) >= 32
        second.sharing.keep_now()
    assert num_entries(store) == 40


def test_a_replica_with_little_of_a_namespace_leaves_its_snapshot_alone(store: Store) -> None:
    rng = np.random.default_rng(0)
    outputs = [rng.integers(1, 999, size=1000).tolist() for _ in range(40)]
    with Replica(store, max_growing_tokens=2048) as first:
        for number, output in enumerate(outputs):
            first.finish(f"r{number}", output)
            first.finish(f"b{number}", output, B)
        first.write_snapshots()
    manifest = store.manifest(A)
    second = Replica(store, max_growing_tokens=2048)
    object.__setattr__(second.engine.config, "budget_bytes", 100_000)
    with second:
        assert 0 < second.num_outputs() < 20
        second.finish("new", rng.integers(1, 999, size=3000).tolist())
        second.write_snapshots()
        assert store.manifest(A) == manifest


def test_health_names_no_text(store: Store) -> None:
    with Replica(store) as one:
        one.finish("secret-request", [5, 6, 7])
        health = one.sharing.health()
        assert "secret-request" not in str(health)
        assert (health["delivered_outputs"], health["queued_outputs"], health["ready"]) == (1, 0, True)
        heard: list[dict[str, Any]] = []
        one.sharing.on_health(heard.append)
        until(lambda: heard)
