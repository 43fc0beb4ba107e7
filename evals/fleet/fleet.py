"""Starts a fleet: a store, replicas, and the router smg in front of them. Needs no container."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from agentspec.errors import ConfigError, ServerError
from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import RunningServer, Server, free_port

POLICIES = ("cache_aware", "round_robin", "power_of_two")
_START_SECONDS = 1200.0
_READY_SECONDS = 60.0
_SERVER_ARGUMENTS = (
    # Servers that start at the same time take memory from each other while they measure what is free.
    *("--mem-fraction-static", "0.9"),
    # Accept lengths then say what a replica knows, and not what steps cost it on a machine that all of them share.
    *("--agentspec-baseline", "fixed:length=16"),
)
# A replica that fails is left out and taken back within seconds.
_ROUTER_ARGUMENTS = (
    *("--health-check-interval-secs", "1", "--health-success-threshold", "1", "--health-failure-threshold", "1"),
    *("--cb-timeout-duration-secs", "2", "--log-level", "warn"),
)


def has_router() -> bool:
    return importlib.util.find_spec("smg") is not None


class Router(RunningServer):
    """smg in a process of its own, as a context manager.

    Raises:
        ConfigError: It is not installed.
        ServerError: It does not find all replicas in time; carries the log's last lines.
    """

    def __init__(self, replicas: Sequence[RunningServer], policy: str, log: Path) -> None:
        if not has_router():
            raise ConfigError("this needs the router smg: `pip install smg`")
        self._port, self._metrics_port = free_port(), free_port()
        super().__init__(f"http://127.0.0.1:{self._port}")
        self._replicas, self._policy, self._log = [each.url for each in replicas], policy, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [sys.executable, "-P", "-m", "smg", "launch", "--host", "127.0.0.1", "--port", str(self._port)]
        words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(self._metrics_port)]
        words += ["--policy", self._policy, *_ROUTER_ARGUMENTS]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*words, "--worker-urls", *self._replicas], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        deadline = time.monotonic() + _READY_SECONDS
        while self.num_healthy() < len(self._replicas):
            if time.monotonic() > deadline or self._process.poll() is not None:
                tail = self._log.read_text(errors="replace")[-2000:]
                self.kill()
                raise ServerError(
                    f"the router did not find {len(self._replicas)} replicas; the end of its log:\n{tail}"
                )
            time.sleep(0.1)

    def num_healthy(self) -> int:
        """Number of replicas that it sends requests to."""
        try:
            return sum(worker["is_healthy"] for worker in self.get("/workers")["workers"])
        except (OSError, urllib.error.URLError):
            return 0

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()


class Store(NamedTuple):
    """A store of a fleet."""

    url: str
    """For AGENTSPEC_STORE."""
    lose: Callable[[], object]
    """Makes the server that holds the data crash."""
    bring_back: Callable[[], object] | None
    """Starts that server again; None if others take over."""


@contextmanager
def one_redis(folder: Path) -> Iterator[Store]:
    """A server that keeps every change on disk."""
    with RedisServer(folder, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield Store(server.url, server.kill, server.start)


@contextmanager
def redis_with_sentinel(folder: Path) -> Iterator[Store]:
    """A master with a replica, which a sentinel promotes."""
    with ExitStack() as stack:
        master = stack.enter_context(RedisServer(folder / "master"))
        stack.enter_context(RedisServer(folder / "replica", "--replicaof", "127.0.0.1", str(master.port)))
        config = (
            f"sentinel monitor fleet 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds fleet 1000\nsentinel failover-timeout fleet 5000\n"
        )
        sentinel = stack.enter_context(RedisServer(folder / "sentinel", sentinel=config))
        _wait_for(lambda: sentinel.command("SENTINEL", "REPLICAS", "fleet"))
        yield Store(f"redis-sentinel://127.0.0.1:{sentinel.port}/fleet", master.kill, None)


@contextmanager
def redis_cluster(folder: Path) -> Iterator[Store]:
    """Three masters, of which the first has nearly all slots and a replica. The others vote for the replica."""
    arguments = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
    with ExitStack() as stack:
        nodes = [stack.enter_context(RedisServer(folder / name, *arguments)) for name in ("a", "b", "c", "d")]
        first, *others, spare = nodes
        for node in nodes[1:]:
            node.command("CLUSTER", "MEET", "127.0.0.1", first.port)
        first.command("CLUSTER", "ADDSLOTS", *range(len(others), 16384))
        for slot, node in enumerate(others):
            node.command("CLUSTER", "ADDSLOTS", slot)
        owner = first.command("CLUSTER", "MYID")
        _wait_for(lambda: owner in spare.command("CLUSTER", "NODES"))
        spare.command("CLUSTER", "REPLICATE", owner)
        for node in nodes:
            _wait_for(partial(_is_up, node))
        _wait_for(lambda: spare.command("ROLE")[3] == b"connected")
        yield Store("redis-cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes), first.kill, None)


STORES = {"redis": one_redis, "sentinel": redis_with_sentinel, "cluster": redis_cluster}


def _is_up(node: RedisServer) -> bool:
    return b"cluster_state:ok" in node.command("CLUSTER", "INFO")


def _wait_for(is_there: Callable[[], object]) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not is_there():
        if time.monotonic() > deadline:
            raise ServerError("the store's servers did not find each other")
        time.sleep(0.05)


def plain_server(logs: Path) -> Server:
    """The server whose answers are the right ones, not started yet."""
    return Server(MODEL_FOLDER, "none", log=logs / "plain.log", start_seconds=_START_SECONDS)


def replicas(
    number: int, store: Store, logs: Path, budget_mb: int, variables: Mapping[str, str] | None = None
) -> list[Server]:
    """The servers of a fleet, not started yet."""
    shared = {"AGENTSPEC_STORE": store.url, "AGENTSPEC_STORE_MODEL": "fleet", "AGENTSPEC_BUDGET_MB": str(budget_mb)}
    return [
        Server(
            MODEL_FOLDER,
            "AGENTSPEC",
            log=logs / f"replica-{each}.log",
            arguments=_SERVER_ARGUMENTS,
            environment={**shared, **(variables or {})},
            start_seconds=_START_SECONDS,
        )
        for each in range(number)
    ]


@contextmanager
def started(servers: Sequence[Server]) -> Iterator[Sequence[Server]]:
    """Starts servers at the same time, and stops them at the end."""
    # Servers are stopped before the pool waits for those that still start.
    with ThreadPoolExecutor(len(servers)) as pool, ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
        list(pool.map(lambda server: server.__enter__(), servers))
        yield servers


def kill(server: Server) -> None:
    """Ends a server's processes as a crash does."""
    for process in server.processes():
        os.kill(process, signal.SIGKILL)
    server.stop()


def store_health(server: RunningServer) -> dict[str, Any]:
    """The block `store` of a replica."""
    return dict((server.agentspec_state() or {}).get("store", {}))


def settle(servers: Sequence[RunningServer]) -> float:
    """Waits until all replicas have written what they had and reach the store again; returns the seconds that took.

    Raises:
        ServerError: It took too long.
    """
    began = time.monotonic()
    while True:
        told = [store_health(server) for server in servers]
        took = time.monotonic() - began
        if all(each.get("connected") and not each.get("queued_outputs") for each in told):
            return took
        if took > _READY_SECONDS:
            raise ServerError(f"the replicas do not reach the store again: {told}")
        time.sleep(0.1)
