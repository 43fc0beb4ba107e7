"""Engines that share one store, as the replicas of a server do."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any, Self

import numpy as np

from agentspec import Engine, EngineConfig
from agentspec.store.base import Scope, Store
from agentspec.store.codec import Codec
from agentspec.store.config import SharingConfig
from agentspec.store.replication.remote import SharingProcess
from agentspec.store.replication.sharing import Sharing

SCOPE = Scope(model="m", tokenizer="t")
A, B = "a" * 32, "b" * 32
_probes = count()


class Replica:
    """An engine and its exchange with a store, as a context manager. The keeper runs only when told to."""

    def __init__(self, store: Store, *, max_growing_tokens: int = 8192, vocab_size: int = 1000, **config: Any) -> None:
        self.store = store
        self.engine = Engine(
            EngineConfig(vocab_size=vocab_size, background=True, max_growing_tokens=max_growing_tokens)
        )
        self.sharing: Sharing | SharingProcess = Sharing(
            self.engine,
            store,
            Codec(store.scope),
            SharingConfig(**{"keep_seconds": 1e6, "load_seconds": 60.0} | config),
        )

    @classmethod
    def beside(cls, url: str, *, vocab_size: int = 1000, **config: Any) -> Self:
        """A replica whose exchange runs in a process of its own."""
        replica = cls.__new__(cls)
        replica.engine = Engine(EngineConfig(vocab_size=vocab_size, background=True, max_growing_tokens=64))
        replica.sharing = SharingProcess(
            replica.engine, url, SCOPE, SharingConfig(**{"keep_seconds": 1e6, "load_seconds": 60.0} | config)
        )
        return replica

    def __enter__(self) -> Self:
        assert self.sharing.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.sharing.close()

    def finish(self, request_id: str, tokens: list[int], namespace: str = A, *, is_delivered: bool = True) -> int:
        """Runs a request that writes `tokens` after a prompt of one token; returns the output's id."""
        self.engine.open(request_id, [0], namespace)
        self.engine.extend(request_id, tokens)
        output_id = self.engine.close(request_id)
        assert output_id is not None
        self.sharing.publish(namespace, output_id, request_id, [0], np.array(tokens, np.int32), len(tokens))
        if is_delivered:
            assert self.sharing.flush(30.0)
        return output_id

    def write_snapshots(self) -> None:
        """Seals what has finished, and does a keeper's work, which includes snapshots."""
        self.engine.flush()
        self.sharing.keep_now()

    def drafts(self, tokens: list[int], namespace: str = A) -> list[int]:
        """Tokens drafted for a new request that ends with these tokens."""
        name = f"probe-{next(_probes)}"
        self.engine.open(name, tokens, namespace)
        self.engine.flush()
        drafted = self.engine.draft([name]).tokens[1:].tolist()
        self.engine.close(name, keep=False)
        return [int(token) for token in drafted]

    def num_outputs(self) -> int:
        self.engine.flush()
        return self.engine.stats().outputs


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Waits until others have made the condition true; returns what it then says."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.005)
    return found
