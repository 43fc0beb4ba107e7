"""Redis fails while two replicas use it: requests continue, and no finished output is lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fault_case import FaultCase, drafts
from replicas import SCOPE, A, B, Replica, until
from tcp_proxy import Proxy

from agentspec.errors import StoreUnavailableError
from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.integrations.servers.server import free_port
from agentspec.store import Store, open_store, place

pytestmark = pytest.mark.redis


def opens(url: str) -> Callable[[], Store]:
    return lambda: open_store(url, SCOPE, timeout=0.5)


def test_killed_and_restarted_with_its_data(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    with server, FaultCase(opens(server.url)) as case:
        server.kill()
        case.fails()
        server.start()
        case.recovers()
        assert case.health()["resets"] == 0


def test_killed_and_restarted_without_its_data(server: RedisServer) -> None:
    with FaultCase(opens(server.url)) as case:
        server.kill()
        case.mark()
        case.fails()
        server.start()
        case.recovers()
        assert case.health()["resets"] == 1
        # Outputs finished before are in the memory of both replicas. The next snapshot writes them to the store again.
        assert drafts(case.one, 0)
        assert drafts(case.other, 0)
        case.one.engine.flush()
        until(lambda: _has_snapshot(case))
        with Replica(case.view, vocab_size=1_000_000) as third:
            assert drafts(third, 0)


def _has_snapshot(case: FaultCase) -> bool:
    for replica in (case.one, case.other):
        replica.sharing.keep_now()
    return any(info.snapshot_bytes for info in case.view.namespaces())


FULL = ("CONFIG", "SET", "maxmemory", "1mb"), ("CONFIG", "SET", "maxmemory", "0")
READ_ONLY = ("REPLICAOF", "127.0.0.1", free_port()), ("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize(("breaks", "mends"), [(None, None), FULL, READ_ONLY], ids=["paused", "full", "read-only"])
def test_what_is_broken_is_mended(server: RedisServer, breaks: Any, mends: Any) -> None:
    server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    with FaultCase(opens(server.url)) as case:
        server.command(*breaks) if breaks else server.pause()
        case.fails()
        server.command(*mends) if mends else server.resume()
        case.recovers()


def test_slow(server: RedisServer) -> None:
    with Proxy(server.port) as proxy, FaultCase(opens(f"redis://127.0.0.1:{proxy.port}"), opens(server.url)) as case:
        proxy.delay = 0.3
        case.goes_on(200)
        case.shared()
        proxy.delay = 0.0
        case.recovers()


def test_slower_than_the_time_out(server: RedisServer) -> None:
    with Proxy(server.port) as proxy, FaultCase(opens(f"redis://127.0.0.1:{proxy.port}"), opens(server.url)) as case:
        proxy.delay = 0.8
        case.fails()
        case.fails("follower")
        proxy.delay = 0.0
        case.recovers()


def test_full_and_still_tidied_up(server: RedisServer) -> None:
    with FaultCase(opens(server.url), quota_bytes=50_000) as case:
        case.until(lambda: case.view.manifest(A) is not None)
        case.view.append([(A, bytes(1000))] * 500)
        server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        server.command("CONFIG", "SET", "maxmemory", "1kb")
        case.fails()
        # The server can still be read.
        case.until(lambda: case.other.sharing.health()["connected"])
        for replica in (case.one, case.other):
            # Snapshots fail. The replica that holds the lease does the rest.
            with suppress(StoreUnavailableError):
                replica.sharing.keep_now()
        assert all(info.log_bytes <= 50_000 for info in case.view.namespaces())
        assert case.view.remove_namespace(A)
        server.command("CONFIG", "SET", "maxmemory", "0")
        case.mark()
        case.goes_on()
        case.shared()


def test_a_user_removed_and_made_again(server: RedisServer) -> None:
    rules = ("ACL", "SETUSER", "drafter", "on", ">of-a-test", "~*", "+@all")
    server.command(*rules)
    with FaultCase(opens(f"redis://drafter:of-a-test@127.0.0.1:{server.port}"), opens(server.url)) as case:
        server.command("ACL", "DELUSER", "drafter")
        case.fails()
        case.fails("follower")
        assert "of-a-test" not in str(case.health())
        server.command(*rules)
        case.recovers()


def test_connections_reset_in_the_middle_of_answers(server: RedisServer) -> None:
    with Proxy(server.port) as proxy, FaultCase(opens(f"redis://127.0.0.1:{proxy.port}"), opens(server.url)) as case:
        for num_bytes in (0, 1, 2, 3, 5, 10, 50, 100, 200, 500, 1000, 2000):
            proxy.reset_after = num_bytes
            case.until(lambda: proxy.reset_after is None)
            case.goes_on(5)
        assert proxy.num_resets == 12
        case.recovers()


def test_appends_whose_answers_are_cut_off_are_in_the_log_once_or_twice(server: RedisServer) -> None:
    with Proxy(server.port) as proxy:
        store = opens(f"redis://127.0.0.1:{proxy.port}")()
        for num_bytes in range(0, 160, 5):
            entry = b"%d" % num_bytes
            proxy.reset_after = num_bytes
            try:
                store.append([(A, entry), (B, entry)])
                # The answer was shorter than the limit.
                proxy.reset_after = None
            except StoreUnavailableError:
                store.append([(A, entry), (B, entry)])
        assert proxy.num_resets > 20
        found = [entry.data for entry in store.scan(A)]
        assert list(dict.fromkeys(found)) == [b"%d" % num_bytes for num_bytes in range(0, 160, 5)]
        assert len(found) == 32 + proxy.num_resets
        assert found == [entry.data for entry in store.scan(B)]
        store.close()


def test_reads_whose_answers_are_cut_off_lose_and_repeat_nothing(server: RedisServer) -> None:
    with Proxy(server.port) as proxy:
        store, direct = opens(f"redis://127.0.0.1:{proxy.port}")(), opens(server.url)()
        reader = store.reader()
        found: list[bytes] = []
        for num_bytes in range(0, 400, 10):
            direct.append([(A, b"%d" % num_bytes), (B, b"%d" % num_bytes)])
            proxy.reset_after = num_bytes
            try:
                found += [entry.data for entry in reader.read(0)]
            except StoreUnavailableError:
                assert proxy.reset_after is None
            while entries := reader.read(0):
                found += [entry.data for entry in entries]
            proxy.reset_after = None
        assert proxy.num_resets > 30
        assert found == [b"%d" % num_bytes for num_bytes in range(0, 400, 10) for _ in (A, B)]
        for each in (reader, store, direct):
            each.close()


def test_flushed(server: RedisServer) -> None:
    with FaultCase(opens(server.url)) as case:
        for resets in (1, 2):
            server.command("FLUSHALL")
            case.until(lambda resets=resets: case.health()["resets"] == resets)
            case.shared()
            assert place(server.url).scopes() == [SCOPE]
        case.mark()
        case.recovers()
