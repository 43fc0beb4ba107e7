"""Every method of a store fails at random, with every error, before or after it has done its work."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fault_case import drafts, stored, words
from replicas import SCOPE, A, B, Replica, until

from agentspec.errors import (
    BrokenLogError,
    RecordError,
    SegmentError,
    StoreError,
    StoreResetError,
    StoreUnavailableError,
)
from agentspec.store.base import Entry, Reader, Store
from agentspec.store.replication import backoff as retry
from agentspec.store.urls import open_store

ERRORS: tuple[Callable[[str], Exception], ...] = (
    StoreUnavailableError,
    StoreError,
    RecordError,
    SegmentError,
    StoreResetError,
    lambda text: BrokenLogError(text, [A]),
    OSError,
    MemoryError,
    ValueError,
)
METHODS = {"append", "read", "lease", "manifest", "write_segment", "write_manifest", "namespaces"}
NUM_CALLS = 2000


class Faults:
    """Decides which calls to the stores and readers of a test fail. Thread-safe."""

    def __init__(self, seed: int) -> None:
        self.are_on = False
        self.num_calls = 0
        self.failed: set[tuple[str, int]] = set()
        """Methods that have failed, each with the index of the error."""
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def were_all(self) -> bool:
        """Whether append() and read() have raised every error, and each method that replicas call often has failed."""
        with self._lock:
            each = {(name, number) for name in ("append", "read") for number in range(len(ERRORS))}
            return each <= self.failed and {name for name, _ in self.failed} >= METHODS

    def call(self, name: str, work: Callable[[], Any]) -> Any:
        with self._lock:
            self.num_calls += 1
            number = self._random.randrange(len(ERRORS)) if self.are_on and self._random.random() < 0.4 else None
            done_before = name == "append" and self._random.random() < 0.5
            if number is not None:
                self.failed.add((name, number))
        if number is None:
            return work()
        error = ERRORS[number](f"fault in {name}")
        # BrokenLogError states which logs were appended to, so it must not be raised for an append that took effect.
        if done_before and not isinstance(error, BrokenLogError):
            work()
        raise error


class FaultyStore:
    def __init__(self, store: Store, faults: Faults) -> None:
        self._store = store
        self._faults = faults
        self.url, self.scope = store.url, store.scope

    def append(self, entries: list[tuple[str, bytes]]) -> None:
        try:
            self._faults.call("append", lambda: self._store.append(entries))
        except BrokenLogError as error:
            self._store.append([entry for entry in entries if entry[0] not in error.namespaces])
            raise

    def reader(self, positions: Mapping[str, str] | None = None) -> FaultyReader:
        make = lambda starts: self._store.reader(starts)
        return FaultyReader(make, self._faults.call("reader", lambda: make(positions)), self._faults)

    def segment(self, namespace: str, name: str) -> Iterator[bytes]:
        for chunk in self._faults.call("segment", lambda: self._store.segment(namespace, name)):
            yield self._faults.call("chunk", lambda chunk=chunk: chunk)

    def write_segment(self, namespace: str, name: str, chunks: Iterable[bytes]) -> None:
        self._faults.call("write_segment", lambda: self._store.write_segment(namespace, name, chunks))

    def close(self) -> None:
        self._store.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)
        return lambda *words, **named: self._faults.call(name, lambda: method(*words, **named))


class FaultyReader:
    """A reader that fails at random. After a StoreResetError it starts from the beginning, as readers do."""

    def __init__(self, make: Callable[[dict[str, str]], Reader], reader: Reader, faults: Faults) -> None:
        self._make, self._reader, self._faults = make, reader, faults
        self.broken: dict[str, str] = {}

    def read(self, wait: float, max_bytes: int = 8 << 20) -> list[Entry]:
        try:
            # Fail before reading, since entries that are read but not returned would be lost.
            self._faults.call("read", list)
        except StoreResetError:
            self._reader.close()
            self._reader = self._make({})
            raise
        return self._reader.read(wait, max_bytes)

    def close(self) -> None:
        self._reader.close()


@pytest.mark.parametrize("seed", [0, 1])
def test_all_methods_fail_at_random_and_all_is_shared_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(retry, "_LONGEST_WAIT", 0.01)
    monkeypatch.setattr(retry, "_FIRST_WAIT", 0.001)
    store = open_store(f"sqlite:///{tmp_path}/store.sqlite3", SCOPE)
    faults = Faults(seed)
    outputs: dict[str, list[int]] = {A: [], B: []}
    numbers = count()

    def replica() -> Replica:
        return Replica(FaultyStore(store, faults), vocab_size=1_000_000, max_growing_tokens=64, keep_seconds=0.002)

    with replica() as one, replica() as other:
        faults.are_on = True

        def work() -> bool:
            for each in (one, other):
                number = next(numbers)
                namespace = (A, B)[number // 2 % 2]
                outputs[namespace].append(each.finish(f"r{number}", words(number), namespace, is_delivered=False))
                assert drafts(each, number, namespace)
                # Both replicas do it, since only the one that holds the lease checks the namespaces.
                if number % 16 < 2:
                    with suppress(Exception):
                        each.sharing.keep_now()
            return faults.num_calls >= NUM_CALLS and faults.were_all()

        until(work)
        # This replica starts in the middle of the faults.
        with replica() as late:
            faults.are_on = False
            everything = len(outputs[A]) + len(outputs[B])
            for each in (one, other, late):
                assert each.sharing.flush(30.0)
                until(lambda each=each: each.num_outputs() == everything)  # type: ignore[misc]
                assert each.sharing.health()["dropped_outputs"] == 0
                for number in range(everything):
                    assert drafts(each, number, (A, B)[number // 2 % 2])
    for namespace, ids in outputs.items():
        assert set(ids) == set(stored(store, namespace))
    store.close()


def test_closing_ends_quietly_while_the_lease_cannot_be_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Event()

    def lease(owner: str, seconds: float) -> bool:
        if seconds <= 0:
            raise ValueError("not even an error of the store's")
        held.set()
        return True

    store = open_store(f"sqlite:///{tmp_path}/store.sqlite3", SCOPE)
    monkeypatch.setattr(store, "lease", lease)
    with Replica(store, keep_seconds=0.002) as replica:
        assert held.wait(30.0)
        until(lambda: replica.sharing.health()["ready"])
    # The thread must have survived all exceptions.
    assert replica.sharing.health()["last_error"]["message"].startswith("giving up the lease")
    store.close()
