"""The store in Redis: foreign data in its place, and restarts, losses and failures of its server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from replicas import until
from store_case import SCOPE, A, B, C, data, drain

from agentspec.errors import StoreError, StoreResetError, StoreUnavailableError
from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.integrations.servers.server import free_port
from agentspec.store import CONTROL, Reader, Store, open_store
from agentspec.store.redis import reader as redis_reader
from agentspec.store.redis import store as redis_store
from agentspec.store.redis.keys import MODELS, PREFIX, RedisKeys

pytestmark = pytest.mark.redis

KEYS = RedisKeys(SCOPE)


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[Store]:
    with closing(open_store(redis_server.url, SCOPE)) as opened:
        yield opened


@pytest.fixture
def reader(store: Store) -> Iterator[Reader]:
    with closing(store.reader()) as opened:
        yield opened


def test_no_server_is_said_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        open_store(f"redis://127.0.0.1:{free_port()}", SCOPE)
    assert time.monotonic() - began < 10


def test_passwords_are_needed_right_and_never_shown(tmp_path: Path) -> None:
    with RedisServer(tmp_path, password="s3cret/@:") as server:
        plain = f"redis://127.0.0.1:{server.port}"
        for url, password in ((plain, None), (plain, "wr0ng"), (f"redis://:wr0ng@127.0.0.1:{server.port}", None)):
            with pytest.raises(StoreError, match="refuses the user 'default'.*AGENTSPEC_STORE_PASSWORD") as caught:
                open_store(url, SCOPE, password=password)
            assert not isinstance(caught.value, StoreUnavailableError)
            assert "wr0ng" not in str(caught.value)
        for url, password in ((plain, "s3cret/@:"), (f"redis://:s3cret%2F%40%3A@127.0.0.1:{server.port}", None)):
            store = open_store(url, SCOPE, password=password)
            store.append([(A, b"1")])
            assert store.url == plain
            assert "s3cret" not in repr(store._address)  # type: ignore[attr-defined]
            store.close()


def test_a_password_for_a_server_without_one_is_refused(redis_server: RedisServer) -> None:
    with pytest.raises(StoreError, match="refuses the user"):
        open_store(redis_server.url, SCOPE, password="anything")


def test_a_read_only_replica_is_refused(redis_server: RedisServer, tmp_path: Path) -> None:
    replica = RedisServer(tmp_path, "--replicaof", "127.0.0.1", str(redis_server.port))
    with replica, pytest.raises(StoreError, match=r"read-only replica: name its master"):
        open_store(replica.url, SCOPE)


@pytest.mark.parametrize(
    ("policy", "maxmemory", "accepted"),
    [("noeviction", "1gb", True), ("volatile-lru", "1gb", True), ("allkeys-lru", "1gb", False), ("allkeys-lru", "0", True)],
)  # fmt: skip
def test_a_server_that_throws_keys_away_is_refused(
    redis_server: RedisServer, policy: str, maxmemory: str, accepted: bool
) -> None:
    redis_server.command("CONFIG", "SET", "maxmemory-policy", policy)
    redis_server.command("CONFIG", "SET", "maxmemory", maxmemory)
    try:
        if accepted:
            open_store(redis_server.url, SCOPE).close()
        else:
            with pytest.raises(StoreError, match=r"maxmemory-policy allkeys-lru.*noeviction"):
                open_store(redis_server.url, SCOPE)
    finally:
        redis_server.command("CONFIG", "SET", "maxmemory", "0")
        redis_server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")


@pytest.mark.parametrize("key", [KEYS.epoch, KEYS.names, KEYS.news, KEYS.control, KEYS.lease, MODELS])
def test_something_else_under_a_key_is_named_when_opening(redis_server: RedisServer, key: str) -> None:
    redis_server.command("RPUSH", key, "garbage")
    with pytest.raises(StoreError, match=r"has a list under the key agentspec:1:") as caught:
        open_store(redis_server.url, SCOPE)
    assert key in str(caught.value)


def test_garbage_in_the_keys_about_others_is_passed_over(
    redis_server: RedisServer, store: Store, reader: Reader
) -> None:
    store.append([(A, b"1")])
    store.write_segment(A, "s", [b"x"])
    redis_server.command("SADD", KEYS.names, b"\xff\xfe", "tenant")
    redis_server.command("XADD", KEYS.news, "*", "n", b"\xff", "more", "fields")
    redis_server.command("XADD", KEYS.log(A), "*", "other", "field")
    redis_server.command("HSET", KEYS.segments(A), "garbage", "no number")
    redis_server.command("HSET", KEYS.segment(A, "t"), "n", "no number")
    assert data(drain(reader)) == [b"1", b"otherfield"]
    assert [info.namespace for info in store.namespaces()] == [A]
    with pytest.raises(StoreError, match="no whole segment"):
        store.segment(A, "t")
    store.write_manifest(A, b"m", ["s"])
    assert store.remove_namespace(A)


def test_a_full_server_takes_nothing_of_a_batch(redis_server: RedisServer, store: Store) -> None:
    store.append([(A, b"1")])
    redis_server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailableError, match="is full"):
            store.append([(A, b"2"), (B, b"2")])
        with pytest.raises(StoreUnavailableError, match="is full"):
            store.write_segment(A, "s", [b"x"])
        assert data(store.scan(A)) == [b"1"]
    finally:
        redis_server.command("CONFIG", "SET", "maxmemory", "0")
    store.append([(A, b"3")])
    assert data(store.scan(A)) == [b"1", b"3"]


def test_a_full_server_is_trimmed_though_whoever_had_the_lease_is_gone(redis_server: RedisServer, store: Store) -> None:
    assert store.lease("gone", 0.05)
    redis_server.command("CONFIG", "SET", "maxmemory", "1kb")
    time.sleep(0.1)
    try:
        assert store.lease("here", 60.0)
        assert not store.lease("here", 0)
    finally:
        redis_server.command("CONFIG", "SET", "maxmemory", "0")
    assert store.lease("here", 60.0) and not store.lease("other", 60.0)


def test_a_server_that_hangs_is_unavailable_until_it_goes_on(server: RedisServer) -> None:
    store = open_store(server.url, SCOPE, timeout=0.5)
    reader = store.reader()
    store.append([(A, b"1")])
    assert data(drain(reader)) == [b"1"]
    server.pause()
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=r"did not answer within 0\.5 s"):
        store.append([(A, b"2")])
    with pytest.raises(StoreUnavailableError):
        reader.read(30)
    with pytest.raises(StoreUnavailableError):
        open_store(server.url, SCOPE, timeout=0.5)
    assert time.monotonic() - began < 20
    server.resume()
    store.append([(A, b"3")])
    # Commands sent while the server hung may have taken effect later.
    assert [each for each in data(drain(reader)) if each != b"2"] == [b"3"]
    reader.close()
    store.close()


def test_a_waiting_reader_outlasts_the_time_out_of_its_connection(redis_server: RedisServer) -> None:
    store = open_store(redis_server.url, SCOPE, timeout=0.5)
    reader = store.reader()
    assert reader.read(1.2) == []
    store.append([(A, b"1")])
    assert data(reader.read(0)) == [b"1"]
    reader.close()
    store.close()


def test_a_server_that_came_back_older_is_a_loss(server: RedisServer) -> None:
    store = open_store(server.url, SCOPE)
    reader = store.reader()
    store.append([(A, b"1")])
    server.command("SAVE")
    store.append([(A, b"2")])
    assert data(drain(reader)) == [b"1", b"2"]
    server.kill()
    server.start()
    # The loss is noticed even if newer news follow the lost ones.
    store.append([(A, b"3")])
    with pytest.raises(StoreResetError, match="older copy"):
        reader.read(0)
    assert data(drain(reader)) == [b"1", b"3"]
    reader.close()
    store.close()


def test_a_clock_that_was_set_back_loses_nothing(redis_server: RedisServer, store: Store, reader: Reader) -> None:
    later = f"{int(time.time() * 1000) + 3_600_000}-0"
    store.append([(A, b"0")])
    redis_server.command("XADD", KEYS.log(A), later, "d", "1")
    redis_server.command("XADD", KEYS.news, later, "n", A)
    assert data(drain(reader)) == [b"0", b"1"]
    store.append([(A, b"2"), (B, b"x")])
    assert data(drain(reader)) == [b"2", b"x"]
    assert store.trim(A, before=time.time() + 1800) == 1
    # A new log starts at the server's time, which is before the entries that were read.
    assert store.remove_namespace(A)
    store.append([(A, b"3")])
    assert data(drain(reader)) == [b"3"]


def test_readers_that_missed_news_miss_no_entries(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr(redis_store, "NEWS_LENGTH", 8)
    monkeypatch.setattr(redis_reader, "NEWS_LENGTH", 8)
    early, reader = store.reader(), store.reader()
    assert early.read(0) == []
    store.append([(A, b"0"), (CONTROL, b"c0")])
    assert sorted(data(drain(reader))) == [b"0", b"c0"]
    store.append([(A, b"1"), (B, b"1"), (CONTROL, b"c1")])
    for number in range(10):
        store.append([(C, b"%d" % number)])
    assert redis_server.command("XLEN", KEYS.news) == 8
    found = data(drain(reader))
    assert found[0] == b"c1", "deletions come first"
    assert len(found) == 13
    assert len(drain(early)) == 15
    reader.close()
    early.close()


def test_only_what_is_being_written_has_a_time_to_live(redis_server: RedisServer, store: Store) -> None:

    def chunks() -> Iterator[bytes]:
        yield b"1"
        written = redis_server.command("KEYS", "*:writing:*")
        assert len(written) == 1
        assert 0 < redis_server.command("TTL", written[0]) <= 600
        yield b"2"

    store.append([(A, b"1"), (CONTROL, b"c")])
    store.write_segment(A, "s", chunks())
    store.write_manifest(A, b"m", ["s"])
    keys = redis_server.command("KEYS", "*")
    assert [key for key in keys if redis_server.command("TTL", key) != -1] == []
    assert {key.decode().removeprefix(KEYS.prefix) for key in keys} == {
        MODELS, "epoch", "names", "news", "control", f"log:{A}", f"manifest:{A}", f"segments:{A}", f"segment:{A}:s",
    }  # fmt: skip
    assert all(key.startswith(PREFIX.encode()) for key in keys)
    store.remove_namespace(A)
    assert redis_server.command("DBSIZE") == 4


def test_a_segment_that_expired_while_it_was_written_does_not_count(redis_server: RedisServer, store: Store) -> None:

    def chunks() -> Iterator[bytes]:
        yield b"1"
        redis_server.command("DEL", *redis_server.command("KEYS", "*:writing:*"))
        yield b"2"

    with pytest.raises(StoreUnavailableError, match="expired"):
        store.write_segment(A, "s", chunks())
    assert list(store.namespaces()) == []
    assert redis_server.command("KEYS", "*:writing:*") == []


def test_a_segment_replaced_while_it_is_read_is_an_error_and_no_mixture(store: Store) -> None:
    store.write_segment(A, "s", [b"1", b"2"])
    chunks = store.segment(A, "s")
    assert next(chunks) == b"1"
    store.write_segment(A, "s", [b"3", b"4"])
    with pytest.raises(StoreError, match="replaced"):
        next(chunks)


def test_a_socket_and_a_database_may_be_named(tmp_path: Path) -> None:
    socket = tmp_path / "redis.sock"
    with RedisServer(tmp_path / "own", "--unixsocket", str(socket)) as server:
        store = open_store(f"unix://{socket}?db=3", SCOPE)
        store.append([(A, b"1")])
        store.close()
        assert server.command("DBSIZE") == 0
        store = open_store(f"valkey://127.0.0.1:{server.port}/3", SCOPE, create=False)
        assert data(store.scan(A)) == [b"1"]
        store.close()
        with pytest.raises(StoreError, match="out of range"):
            open_store(f"redis://127.0.0.1:{server.port}/99", SCOPE)


def test_closing_wakes_no_one_and_leaves_no_connection(server: RedisServer) -> None:
    stores = [open_store(server.url, SCOPE) for _ in range(3)]
    readers = [store.reader() for store in stores]
    threads = [threading.Thread(target=reader.read, args=[0.05]) for reader in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in (*readers, *stores):
        each.close()
    until(lambda: len(server.command("CLIENT", "LIST").splitlines()) <= 1, 20.0)
