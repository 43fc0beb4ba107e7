"""The process that a store's threads run in, so that they never hold the GIL of the scheduler's process.

    scheduler's process                        this process
      Outbox  <──────────── take ────────────── writer    ──> store
      Engine  <──── add, load, snapshot ─────── follower, keeper <── store
      SharingProcess ── forget, health ──────>  Sharing

It ends when the scheduler's process does.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec import __version__
from agentspec.config import EngineConfig
from agentspec.engine import NamespaceStats, TokenArray
from agentspec.errors import StoreError, StoreUnavailableError
from agentspec.snapshot import SealedSegment, Snapshot
from agentspec.store.base import Scope, Store
from agentspec.store.codec import Codec
from agentspec.store.config import SharingConfig
from agentspec.store.replication.channel import Channel
from agentspec.store.replication.deletion import Deleted
from agentspec.store.replication.outbox import FinishedOutput
from agentspec.store.replication.sharing import Sharing
from agentspec.store.urls import open_store

# Longest time, in seconds, that a resumed process waits for its store, and the time between its tries.
_PATIENCE, _RETRY_SECONDS = 60.0, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSetup:
    """What the process is told at its start."""

    url: str
    scope: Scope
    sharing: SharingConfig
    engine: EngineConfig
    password: str | None
    key: bytes | None
    is_resumed: bool = False
    """Whether an earlier process has filled the engine."""


class RemoteEngine:
    """The engine in the scheduler's process.

    Outputs gather in add() until one of the calls that wait for them, since a message costs as much as some outputs.
    """

    def __init__(self, channel: Channel, config: EngineConfig) -> None:
        self.config = config
        self.on_refused: Callable[[Exception], None] = lambda error: None
        """Called with the error of each output that the engine did not take."""
        self.on_cleared: Callable[[], None] = lambda: None
        """Called before a snapshot is returned that an engine may have made after it was cleared."""
        self._channel = channel
        self._lock = threading.Lock()
        self._added: list[tuple[str, int, int, int, int]] = []
        self._tokens: list[TokenArray] = []

    def add(self, namespace: str, output_id: int, tokens: TokenArray, *, num_prompt_tail: int, time: int) -> bool:
        with self._lock:
            self._added.append((namespace, output_id, len(tokens), num_prompt_tail, time))
            self._tokens.append(tokens)
        return True

    def flush(self) -> None:
        self._give()
        self._channel.call("flush")

    def wait_indexed(self) -> None:
        self._give()

    def expire(self, namespace: str, before: int) -> int:
        self._give()
        return int(self._channel.call("expire", namespace, before))

    def delete_request(self, namespace: str, request_id: str) -> int:
        self._give()
        return int(self._channel.call("delete_request", namespace, request_id))

    def namespaces(self) -> list[NamespaceStats]:
        return [NamespaceStats(*stats) for stats in self._channel.call("namespaces")]

    def snapshot(self, namespace: str) -> Snapshot:
        """The segments' bytes are fetched when they are first converted to an array."""
        self._give()
        segments, unsealed, is_rewriting, is_cleared = self._channel.call("snapshot", namespace)
        if is_cleared:
            self.on_cleared()
        return Snapshot(
            tuple(
                SealedSegment(name, _RemoteBlob(self._channel, namespace, name, num_bytes), *rest)  # type: ignore[arg-type]
                for name, num_bytes, *rest in segments
            ),
            unsealed,
            is_rewriting,
        )

    def load_segments(self, namespace: str, blobs: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint64]:
        ids: NDArray[np.uint64] = self._channel.call("load_segments", namespace, blobs)
        return ids

    def _give(self) -> None:
        """Hands over what was added and waits until it is indexed."""
        with self._lock:
            if not self._added:
                return
            added, tokens = self._added, np.concatenate(self._tokens)
            self._added, self._tokens = [], []
            errors = self._channel.call("add_all", added, tokens)
        for error in errors:
            self.on_refused(error)


class _RemoteBlob:
    def __init__(self, channel: Channel, namespace: str, name: str, num_bytes: int) -> None:
        self.nbytes = num_bytes
        self._fetch: Callable[[], NDArray[np.uint8]] = lambda: channel.call("segment", namespace, name)

    def __array__(self, *arguments: Any, **options: Any) -> NDArray[np.uint8]:
        return self._fetch()


class RemoteOutbox:
    """The Outbox in the scheduler's process, for the writer. It counts as empty here, because it is counted there."""

    waiting_tokens = 0
    num_dropped = 0

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __len__(self) -> int:
        return 0

    def put(self, output: FinishedOutput) -> None:
        raise StoreError("outputs are put into the queue of the scheduler's process")

    def take(self, max_outputs: int, max_tokens: int, wait: float) -> list[FinishedOutput]:
        """Outputs taken before, and not reported otherwise, count as delivered from now on."""
        taken: list[FinishedOutput] = self._channel.call("take", max_outputs, max_tokens, wait)
        return taken

    def delivered(self, *, aside: Sequence[FinishedOutput] = (), num_dropped: int = 0) -> None:
        if aside or num_dropped:
            self._channel.call("delivered", {output.namespace for output in aside}, num_dropped)

    def bring_back(self) -> None:
        self._channel.call("bring_back")

    def put_back(self, outputs: Sequence[FinishedOutput]) -> None:
        self._channel.call("put_back")

    def hurry(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Commands:
    """The calls of a SharingProcess."""

    def __init__(self, engine: Channel, outbox: Channel) -> None:
        self._engine, self._outbox = engine, outbox
        self._store: Store | None = None
        self._sharing: Sharing | None = None

    def open(self, setup: StoreSetup) -> None:
        """Raises ConfigError, StoreError as open_store() does. A resumed process waits a while for a store that is away,
        because starting another process costs far more than another try."""
        codec = Codec(setup.scope, setup.key)
        deadline = time.monotonic() + (_PATIENCE if setup.is_resumed else 0.0)
        while self._store is None:
            try:
                self._store = open_store(setup.url, setup.scope, password=setup.password)
            except StoreUnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
        engine = RemoteEngine(self._engine, setup.engine)
        self._sharing = Sharing(engine, self._store, codec, setup.sharing, outbox=RemoteOutbox(self._outbox))
        engine.on_refused, engine.on_cleared = self._sharing.refused, self._sharing.engine_cleared
        self._sharing.on_health(lambda health: self._engine.call("store_health", health))
        if setup.is_resumed:
            self._sharing.resume()
        self._sharing.begin()

    def wait_ready(self, seconds: float) -> bool:
        return self._opened.ready.wait(seconds)

    def health(self) -> dict[str, Any]:
        return self._opened.health()

    def forget(self, namespace: str) -> Deleted:
        return self._opened.forget(namespace)

    def keep_now(self) -> None:
        self._opened.keep_now()

    def close(self) -> None:
        if self._sharing is not None:
            self._sharing.close()
        if self._store is not None:
            self._store.close()

    @property
    def _opened(self) -> Sharing:
        assert self._sharing is not None
        return self._sharing


def main() -> None:
    """Runs the process. Its arguments are the version of agentspec that the server runs, and the descriptors of the sockets
    for commands, engine and outbox."""
    running, *descriptors = sys.argv[1:]
    if running != __version__:
        # Another version may mean something else by the same messages.
        sys.exit(f"agentspec {running} was replaced by {__version__} under the running server; restart the server")
    # Whoever interrupts a server interrupts this process too; it must write what the server still hands over.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    commands, engine, outbox = (Channel(socket.socket(fileno=int(each))) for each in descriptors)
    handlers = _Commands(engine, outbox)
    commands.serve(handlers)
    handlers.close()
