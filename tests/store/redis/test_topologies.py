"""The store behind sentinels and in a cluster, and the store errors that those of redis-py become."""

from __future__ import annotations

import inspect
import time
from pathlib import Path

import pytest
import redis.exceptions
from every import every
from replicas import until
from store_case import SCOPE, A, B, data, drain

from agentspec.errors import StoreError, StoreUnavailableError
from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.integrations.servers.server import free_port
from agentspec.store import CONTROL, Scope, acl_rules, open_store, place
from agentspec.store.redis.errors import MEANINGS, store_error

DEADLINE = 30.0


def sentinel_of(folder: Path, master: RedisServer) -> RedisServer:
    return RedisServer(
        folder,
        sentinel=f"sentinel monitor agents 127.0.0.1 {master.port} 1\n"
        "sentinel down-after-milliseconds agents 300\nsentinel failover-timeout agents 2000\n",
    )


@pytest.mark.redis
def test_sentinels_lead_to_the_master_and_to_the_next_one(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "a") as master:
        replica = RedisServer(tmp_path / "b", "--replicaof", "127.0.0.1", str(master.port))
        with replica, sentinel_of(tmp_path / "c", master) as sentinel:
            url = f"redis-sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinel.port}/agents"
            store = open_store(url, SCOPE, timeout=2)
            reader = store.reader()
            store.append([(A, b"1")])
            assert data(drain(reader)) == [b"1"]
            assert master.command("WAIT", 1, 10_000) == 1
            until(lambda: sentinel.command("SENTINEL", "REPLICAS", "agents"))
            master.kill()
            deadline, attempts = time.monotonic() + DEADLINE, 0
            while True:
                try:
                    store.append([(A, b"2")])
                    break
                except StoreUnavailableError:
                    attempts += 1
                    assert time.monotonic() < deadline, "no failover"
                    time.sleep(0.1)
            assert attempts > 0
            found: list[bytes] = []
            while not found:
                try:
                    found = data(reader.read(1))
                except StoreUnavailableError:
                    assert time.monotonic() < deadline
            assert found == [b"2"]
            assert replica.command("XLEN", f"agentspec:1:{{{SCOPE.id}}}:log:{A}") == 2
            reader.close()
            store.close()


@pytest.mark.redis
def test_a_service_that_no_sentinel_knows_is_named(tmp_path: Path, redis_server: RedisServer) -> None:
    sentinel = sentinel_of(tmp_path, redis_server)
    with sentinel, pytest.raises(StoreUnavailableError, match=r"knows the master of 'other'"):
        open_store(f"redis-sentinel://127.0.0.1:{sentinel.port}/other", SCOPE)


@pytest.mark.redis
def test_a_cluster_is_used_at_the_nodes_that_have_the_slots(tmp_path: Path) -> None:
    arguments = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    with RedisServer(tmp_path / "a", *arguments) as one, RedisServer(tmp_path / "b", *arguments) as two:
        two.command("CLUSTER", "MEET", "127.0.0.1", one.port)
        # `two` has all slots, and `one` is a node without slots.
        two.command("CLUSTER", "ADDSLOTS", *range(16384))
        for server in (one, two):
            until(lambda server=server: b"cluster_state:ok" in server.command("CLUSTER", "INFO"))
            until(lambda server=server: server.command("CLUSTER", "SLOTS"))
        for server in (one, two):
            server.command(*acl_rules("drafter", cluster=True).split(), ">pw")
        url = f"redis-cluster://drafter:pw@127.0.0.1:{free_port()},127.0.0.1:{one.port}"
        store = open_store(url, SCOPE)
        reader = store.reader()
        store.append([(A, b"1"), (B, b"x"), (CONTROL, b"c")])
        store.write_segment(A, "s", [b"chunk"])
        store.write_manifest(A, b"m", ["s"])
        assert sorted(data(drain(reader))) == [b"1", b"c", b"x"]
        assert list(store.segment(A, "s")) == [b"chunk"]
        assert store.lease("me", 60)
        assert store.remove_namespace(A)
        assert sorted(info.namespace for info in store.namespaces()) == [B]
        # A slot that moves, here an empty one, is found at its new node.
        empty = open_store(url, Scope("moving", "t"))
        assert place(url).delete_scope(Scope("moving", "t"))
        slot = two.command("CLUSTER", "KEYSLOT", f"{{{empty.scope.id}}}")
        node = one.command("CLUSTER", "MYID")
        for server in (one, two):
            server.command("CLUSTER", "SETSLOT", slot, "NODE", node)
        empty.append([(A, b"moved")])
        assert data(empty.scan(A)) == [b"moved"]
        assert one.command("DBSIZE") > 0
        assert {scope.model for scope in place(url).scopes()} == {SCOPE.model, "moving"}
        reader.close()
        store.close()
        empty.close()


@pytest.mark.redis
def test_a_cluster_that_lacks_slots_is_unavailable(tmp_path: Path) -> None:
    with RedisServer(tmp_path, "--cluster-enabled", "yes") as server:
        with pytest.raises(StoreUnavailableError, match="has the slot"):
            open_store(f"redis-cluster://127.0.0.1:{server.port}", SCOPE)
        with pytest.raises(StoreUnavailableError):
            open_store(server.url, SCOPE)


CLASSES = {
    name: each
    for name, each in inspect.getmembers(redis.exceptions, inspect.isclass)
    if issubclass(each, Exception) and each.__module__ == "redis.exceptions"
}


def test_no_class_is_without_a_meaning() -> None:
    assert CLASSES.keys() - MEANINGS.keys() == set(), "say in MEANINGS what these mean"


@every("name", sorted(CLASSES))
def test_each_class_becomes_the_error_that_it_means(name: str) -> None:
    words = "1 host:1" if name in ("AskError", "MovedError") else "words of the server"
    mapped = store_error(CLASSES[name](words), "redis://host", "user", 5)
    assert mapped is not None
    assert isinstance(mapped, StoreUnavailableError) == (MEANINGS[name] in ("unavailable", "full", "readonly"))
    assert "redis://host" in str(mapped)


@every(
    ("words", "later"),
    [
        ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to", True),
        ("NOREPLICAS Not enough good replicas to write.", True),
        ("BUSY Redis is busy running a script.", True),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", False),
        ("unknown command 'XADD'", False),
    ],
)
def test_answers_without_a_class_are_told_apart_by_their_code(words: str, later: bool) -> None:
    mapped = store_error(redis.exceptions.ResponseError(words), "redis://host", None, 5)
    assert isinstance(mapped, StoreError)
    assert isinstance(mapped, StoreUnavailableError) == later


@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset"), TimeoutError("timed out"), OSError("any")])
def test_errors_of_the_system_are_for_later(error: OSError) -> None:
    assert isinstance(store_error(error, "redis://host", None, 5), StoreUnavailableError)


@pytest.mark.parametrize("error", [ValueError("ours"), KeyError("ours"), AssertionError()])
def test_other_errors_are_not_the_store_s(error: Exception) -> None:
    assert store_error(error, "redis://host", None, 5) is None
