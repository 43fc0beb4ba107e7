"""A store of each kind for every test that asks for a `case`, and one real Redis server for the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_case import StoreCase

from agentspec.evals.micro.store.redis_server import RedisServer


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_server(shared_redis: RedisServer) -> RedisServer:
    """An empty server. Tests may write to it but must not stop it."""
    shared_redis.command("FLUSHALL")
    return shared_redis


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of one test, which the test may stop. It loses its data when it stops."""
    with RedisServer(tmp_path / "own") as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreCase]:
    if request.param == "sqlite":
        path = tmp_path / "store.sqlite3"
        case = StoreCase("sqlite", f"sqlite:///{path}", lambda: _remove(path))
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        case = StoreCase("redis", server.url, lambda: server.command("FLUSHALL"))
    yield case
    case.close()


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
