"""Replicas without servers: engines that learn and share through a store as those of servers do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from agentspec.engine import Engine, request_hash
from agentspec.errors import StoreUnavailableError
from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.store.base import Scope, Store
from agentspec.store.codec import Codec
from agentspec.store.config import SharingConfig
from agentspec.store.namespaces import namespace_id
from agentspec.store.records import Manifest
from agentspec.store.replication.remote import SharingProcess
from agentspec.store.replication.sharing import Sharing
from agentspec.store.urls import is_file, open_store

SCOPE = Scope(model="bench", tokenizer="bench")
NAMESPACE = namespace_id("bench", None)
CODEC = Codec(SCOPE)
_NOTHING = Manifest(position="", segments=(), time=0.0)
KINDS = ("sqlite", "redis")
# Loading may take any time, because that time is what is measured.
LOAD_SECONDS = 600.0
# The keeper works only on request.
NEVER = 1e6
# Tokens of the prompt that are published with an output.
_TAIL = 16


@contextmanager
def empty_store(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a new store of a kind in KINDS, in a folder, for the lifetime of the context."""
    if kind == "sqlite":
        folder.mkdir(parents=True, exist_ok=True)
        yield f"sqlite:///{folder.resolve() / 'store.sqlite3'}"
    else:
        with RedisServer(folder) as server:
            yield server.url


class Replica:
    """An engine and its exchange with a store; a context manager. It writes only what finish() gets, and snapshots on
    request."""

    def __init__(self, url: str, engine: Engine, config: SharingConfig | None = None) -> None:
        self.engine = engine
        self.url = url
        config = config or SharingConfig(keep_seconds=NEVER, load_seconds=LOAD_SECONDS)
        # As servers do.
        self._store = open_store(url, SCOPE) if is_file(url) else None
        self.sharing = (
            Sharing(engine, self._store, CODEC, config) if self._store else SharingProcess(engine, url, SCOPE, config)
        )

    def __enter__(self) -> Self:
        if not self.sharing.start():
            raise StoreUnavailableError(f"{self.url} was not loaded in time: {self.sharing.health()['last_error']}")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.sharing.close()
        if self._store is not None:
            self._store.close()

    def finish(self, request_id: str, prompt: NDArray[np.int32], output: NDArray[np.int32]) -> None:
        """Learns and publishes the output of an open request."""
        output_id = self.engine.close(request_id)
        if output_id is not None:
            tail = prompt[-self.engine.config.prompt_tail :]
            self.sharing.publish(NAMESPACE, output_id, request_id, tail.tolist(), output.tolist(), len(output))

    def publish(self, name: str, number: int, output: list[int]) -> int:
        """Publishes an output that its engine did not make; returns its id."""
        request_id = f"{name}-{number}"
        output_id = request_hash(request_id) << 32 | (number + 1)
        self.sharing.publish(NAMESPACE, output_id, request_id, output[:_TAIL], output, len(output))
        return output_id

    def flush(self) -> None:
        """Waits until everything that was finished is in the engine and in the store."""
        self.engine.flush()
        if not self.sharing.flush(LOAD_SECONDS):
            raise StoreUnavailableError(f"{self.url} did not take all: {self.sharing.health()['last_error']}")


def stored_bytes(store: Store) -> dict[str, int]:
    """Of the namespace's log and snapshot, and of the whole store."""
    info = next(info for info in store.namespaces() if info.namespace == NAMESPACE)
    return {"log_bytes": info.log_bytes, "snapshot_bytes": info.snapshot_bytes, "store_bytes": store.info().used_bytes}


def drop_snapshot(store: Store) -> None:
    """Leaves only the log, as before the first snapshot."""
    store.write_manifest(NAMESPACE, CODEC.encode_manifest(NAMESPACE, _NOTHING), ())
