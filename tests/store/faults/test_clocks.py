"""The clock of a replica or of the store jumps: only old entries are removed, and sharing continues."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from fault_case import FaultCase
from replicas import SCOPE, A, Replica, until

from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.store import CONTROL, Store, clock, open_store
from agentspec.store.codec import Codec
from agentspec.store.records import Deletion
from agentspec.store.redis.keys import RedisKeys

KEYS = RedisKeys(SCOPE)
CODEC = Codec(SCOPE)
DAY = 86400.0


class Clock:
    """Replaces time.time() by a clock that differs from the true time by an amount that the test sets."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._time = time.time

    def __call__(self) -> float:
        return self._time() + self.ahead


@pytest.fixture
def system_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    system_clock = Clock()
    monkeypatch.setattr(time, "time", system_clock)
    return system_clock


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.sqlite3"
    server: RedisServer = request.getfixturevalue("server")
    return server.url


@pytest.mark.parametrize("days", [400.0, -400.0, 40.0])
def test_a_replica_s_clock_that_jumps_and_comes_back(url: str, system_clock: Clock, days: float) -> None:
    def open_it() -> Store:
        return open_store(url, SCOPE, timeout=0.5)

    with FaultCase(open_it, ttl_seconds=30 * DAY) as case:
        system_clock.ahead = days * DAY
        case.goes_on()
        case.shared()
        for replica in (case.one, case.other):
            replica.sharing.keep_now()
        system_clock.ahead = 0.0
        case.goes_on()
        for replica in (case.one, case.other):
            replica.sharing.keep_now()
        case.recovers()


def test_a_server_that_starts_with_a_clock_that_is_ahead(
    url: str, system_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def started() -> Iterator[Replica]:
        with (
            closing(open_store(url, SCOPE)) as store,
            Replica(store, max_growing_tokens=64, ttl_seconds=30 * DAY) as one,
        ):
            yield one
            one.write_snapshots()

    with started() as one:
        one.finish("before", list(range(1, 80)))
    system_clock.ahead = 400 * DAY
    with started() as one:
        assert one.drafts([1, 2])
        one.finish("meanwhile", [500, 501, 502])
    system_clock.ahead = 0.0
    with started() as one:
        assert one.drafts([1, 2]) and one.drafts([500]) == [501, 502]
        assert [info.num_entries for info in one.store.namespaces()] == [2]
    # A clock that stays ahead is believed: the server was off for long. A store with a clock of its own knows better.
    system_clock.ahead = 800 * DAY
    monkeypatch.setattr(clock, "_BELIEVED_SECONDS", 0.0)
    with started() as one:
        one.write_snapshots()
        assert one.num_outputs() == (0 if url.startswith("sqlite") else 2)


def test_a_snapshot_that_is_written_while_the_clock_is_behind_stays(tmp_path: Path, system_clock: Clock) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/store.sqlite3", SCOPE)) as store, Replica(store) as one:
        one.finish("r", [1, 2, 3] * 5000)
        system_clock.ahead = -400 * DAY
        one.write_snapshots()
        data = store.manifest(A)
        assert data is not None
        assert CODEC.decode_manifest(A, data).segments


def test_a_clock_that_was_wrong_and_was_set_right_is_believed_in_time(
    system_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monotonic = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: monotonic)
    system_clock._time = lambda: 1.8e9 + monotonic
    steady = clock.SteadyClock()
    system_clock.ahead = 50.0
    assert steady.now() == time.time()
    system_clock.ahead = 5000.0
    for _ in range(5):
        assert steady.now() == time.time() - 4950.0
        monotonic += 100.0
    # The clock jumps again, so the ten minutes restart.
    system_clock.ahead = 9000.0
    for _ in range(6):
        assert steady.now() == time.time() - 8950.0
        monotonic += 100.0
    assert steady.now() == time.time()


@pytest.mark.redis
def test_a_redis_clock_that_was_ahead(server: RedisServer) -> None:
    with FaultCase(lambda: open_store(server.url, SCOPE, timeout=0.5), ttl_seconds=30 * DAY) as case:
        early = Deletion(A, "early", time.time())
        case.view.append([(CONTROL, CODEC.encode(CONTROL, early))])
        # The id that XADD assigns after the server's clock has been this far ahead.
        ahead = f"{int((time.time() + 400 * DAY) * 1000)}-0"
        late = CODEC.encode(CONTROL, Deletion(A, "late", time.time()))
        server.command("XADD", KEYS.control, ahead, "d", late)
        server.command("XADD", KEYS.log(A), ahead, "d", b"garbage")
        server.command("XADD", KEYS.news, ahead, "n", A, "n", CONTROL)
        case.until(lambda: case.health()["deletions"] == 2)
        case.view.append([(CONTROL, CODEC.encode(CONTROL, Deletion(A, "last", time.time())))])
        case.until(lambda: case.health()["deletions"] == 3)
        # Deletions from before the jump are still remembered.
        assert len(case.view.scan(CONTROL)) == 3
        for replica in (case.one, case.other):
            replica.sharing.keep_now()
        case.recovers()
        until(lambda: case.other.sharing.health()["deletions"] == 3)
