"""Keys of a Redis store hold foreign data: unaffected parts continue, and the others recover when it is removed."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from fault_case import FaultCase, drafts, stored, words
from replicas import SCOPE, A, B, Replica, until

from agentspec.errors import StoreError
from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.store import CONTROL, Store, open_store
from agentspec.store.codec import Codec
from agentspec.store.records import Deletion, Manifest, OutputRecord
from agentspec.store.redis.keys import RedisKeys

pytestmark = pytest.mark.redis

KEYS = RedisKeys(SCOPE)
CODEC = Codec(SCOPE)
LAST_ID = f"{2**64 - 1}-{2**64 - 1}"


def case_of(server: RedisServer, **config: float) -> FaultCase:
    return FaultCase(lambda: open_store(server.url, SCOPE, timeout=0.5), namespaces=(A, B), **config)


@pytest.fixture
def case(server: RedisServer) -> Iterator[FaultCase]:
    with case_of(server) as case:
        yield case


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    """A store with 20 outputs in each of A and B, and with snapshots of them."""
    store = open_store(server.url, SCOPE)
    with Replica(store, max_growing_tokens=64) as replica:
        for number in range(40):
            replica.finish(f"r{number}", words(number), (A, B)[number % 2], is_delivered=False)
        assert replica.sharing.flush(30.0)
        replica.write_snapshots()
    assert store.manifest(A) is not None
    yield store
    store.close()


def put_list(server: RedisServer, key: str) -> None:
    """Replaces the value of a key by a list, in one step."""
    server.command("RPUSH", "garbage", "x")
    server.command("RENAME", "garbage", key)


def newer(data: bytes) -> bytes:
    """Turns a record into one that a later version may write, with a correct checksum."""
    body = data[:4] + b"\x02" + data[5:-4]
    return body + zlib.crc32(body).to_bytes(4, "little")


def in_the_other_namespace(case: FaultCase) -> None:
    """Checks that outputs finished in B reach the follower, each of them once."""
    number = max(number for number in list(case.traffic.outputs) if case.traffic.namespace(number) == B) + 2
    case.until(lambda: number in case.traffic.outputs)
    case.until(lambda: drafts(case.other, number, B))
    assert max(stored(case.view, B).values()) == 1


def test_a_log_of_another_type_holds_up_no_other(server: RedisServer, case: FaultCase) -> None:
    put_list(server, KEYS.log(A))
    case.until(lambda: case.health()["broken_logs"] == 1)
    in_the_other_namespace(case)
    # The replica tries the broken log again meanwhile.
    errors = case.health()["errors"]
    case.until(lambda: case.health()["errors"] > errors + 1)
    in_the_other_namespace(case)
    assert case.health()["connected"]
    assert case.health()["queued_outputs"] > 0
    server.command("DEL", KEYS.log(A))
    case.mark()
    case.recovers()
    assert case.health()["broken_logs"] == 0


def test_a_log_with_the_last_id_holds_up_no_other(server: RedisServer, case: FaultCase) -> None:
    server.command("XADD", KEYS.log(A), LAST_ID, "d", "garbage")
    server.command("XADD", KEYS.news, "*", "n", A)
    for replica in (case.one, case.other):
        case.until(lambda replica=replica: replica.sharing.health()["broken_logs"] == 1)
    in_the_other_namespace(case)
    with Replica(case.view, vocab_size=1_000_000) as third:
        assert drafts(third, 0, A)
    server.command("DEL", KEYS.log(A))
    case.mark()
    case.recovers()


@pytest.mark.parametrize(
    ("key", "thread"),
    [(KEYS.news, "writer"), (KEYS.news, "follower"), (KEYS.names, "writer"), (KEYS.epoch, "follower")],
)
def test_a_key_of_all_of_another_type(server: RedisServer, case: FaultCase, key: str, thread: str) -> None:
    put_list(server, key)
    case.fails(thread)
    server.command("DEL", key)
    case.recovers()
    # A failed transaction may have appended some outputs, but not once per try.
    assert max(stored(case.view).values()) <= 2


def test_news_with_the_last_id(server: RedisServer, case: FaultCase) -> None:
    server.command("XADD", KEYS.news, LAST_ID, "n", A)
    case.fails()
    server.command("DEL", KEYS.news)
    case.recovers()
    assert max(stored(case.view).values()) <= 2


def test_an_epoch_of_other_bytes_is_another_life(server: RedisServer, case: FaultCase) -> None:
    server.command("SET", KEYS.epoch, b"\xff\x00")
    case.until(lambda: case.health()["resets"] == 1)
    case.recovers()


@pytest.mark.parametrize("is_list", [True, False])
def test_a_lease_that_is_none_is_taken(server: RedisServer, case: FaultCase, is_list: bool) -> None:
    if is_list:
        put_list(server, KEYS.lease)
    else:
        server.command("SET", KEYS.lease, "for ever")
    case.until(lambda: server.command("PTTL", KEYS.lease) > 0)
    case.recovers()


def test_a_control_log_of_another_type_is_read_later(server: RedisServer, store: Store) -> None:
    put_list(server, KEYS.control)
    with Replica(store) as replica:
        assert replica.num_outputs() == 40
        until(lambda: replica.sharing.health()["broken_logs"] == 1)
        replica.finish("r40", words(40))
        server.command("DEL", KEYS.control)
        store.append([(CONTROL, CODEC.encode(CONTROL, Deletion(A, "r40", time.time())))])
        until(lambda: replica.num_outputs() == 40)


@pytest.mark.parametrize("what", ["manifest", "segments", "segment"])
def test_a_part_of_a_snapshot_of_another_type_costs_the_snapshot_only(
    server: RedisServer, store: Store, what: str
) -> None:
    (name, *_) = [ref.name for ref in manifest_of(store).segments]
    key = {"manifest": KEYS.manifest(A), "segments": KEYS.segments(A), "segment": KEYS.segment(A, name)}[what]
    put_list(server, key)
    starts_whole(store)


@pytest.mark.parametrize("what", ["manifest", "segment"])
@pytest.mark.parametrize("is_newer", [True, False])
def test_a_part_of_a_snapshot_of_other_bytes_costs_the_snapshot_only(
    server: RedisServer, store: Store, what: str, is_newer: bool
) -> None:
    if what == "manifest":
        data = store.manifest(A) or b""
        server.command("SET", KEYS.manifest(A), newer(data) if is_newer else data[:-1])
    else:
        (name, *_) = [ref.name for ref in manifest_of(store).segments]
        (data,) = store.segment(A, name)
        server.command("HSET", KEYS.segment(A, name), 0, newer(data) if is_newer else data[:-1])
    starts_whole(store)


def manifest_of(store: Store) -> Manifest:
    return CODEC.decode_manifest(A, store.manifest(A) or b"")


def starts_whole(store: Store) -> None:
    """Checks that a starting replica has all outputs, shares new ones, and writes snapshots of the other namespace."""
    with Replica(store, max_growing_tokens=64) as replica:
        assert replica.num_outputs() == 40
        assert drafts(replica, 0, A)
        assert drafts(replica, 1, B)
        with Replica(store) as other:
            for number in range(41, 121, 2):
                replica.finish(f"r{number}", words(number), B)
            until(lambda: drafts(other, 119, B))
        before = store.manifest(B)
        replica.engine.flush()
        # Work on A may fail, but B gets its snapshot.
        with suppress(StoreError):
            replica.sharing.keep_now()
        assert store.manifest(B) != before


def test_entries_of_other_bytes_are_passed_over(server: RedisServer) -> None:
    good = CODEC.encode(A, OutputRecord(7, "r", time.time(), 0, np.array([5, 6], np.int32)))
    deletion = CODEC.encode(CONTROL, Deletion(A, None, time.time()))
    # Take no snapshots, because a third replica would not read the entries that a snapshot covers.
    with case_of(server, keep_seconds=1e6) as case:
        for data in (b"", b"\xff" * 100, good[:-1], good[1:], newer(good), deletion, good.replace(b"agsp", b"AGSP")):
            server.command("XADD", KEYS.log(A), "*", "d", data)
        server.command("XADD", KEYS.log(A), "*", "other", good, "d", good)
        for data in (b"", newer(deletion), good):
            server.command("XADD", KEYS.control, "*", "d", data)
        for name in (A, CONTROL):
            server.command("XADD", KEYS.news, "*", "n", name)
        case.until(lambda: case.health()["skipped_records"] == 11)
        case.recovers()
        with Replica(case.view, vocab_size=1_000_000) as third:
            assert third.num_outputs() == case.one.num_outputs()
            assert third.sharing.health()["skipped_records"] == 11
