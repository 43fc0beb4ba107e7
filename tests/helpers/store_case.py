"""Stores of every kind with one interface, for tests that apply to all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from agentspec.store import Entry, Reader, Scope, Store, open_store

SCOPE = Scope("model", "ab" * 32)
A, B, C = "a" * 32, "b" * 32, "0123456789abcdef" * 2


class StoreCase:
    """A store of one kind, empty at the beginning of a test. Everything that the test opens is closed after it."""

    def __init__(self, kind: str, url: str, wipe: Callable[[], object]) -> None:
        self.kind = kind
        self.url = url
        self.wipe = wipe
        """Makes the store lose everything without its users' knowledge."""
        self._opened = ExitStack()

    def open(self, scope: Scope = SCOPE, **arguments: Any) -> Store:
        store = open_store(self.url, scope, **arguments)
        self._opened.callback(store.close)
        return store

    def reader(self, store: Store, positions: dict[str, str] | None = None) -> Reader:
        reader = store.reader(positions)
        self._opened.callback(reader.close)
        return reader

    def close(self) -> None:
        self._opened.close()


def drain(reader: Reader) -> list[Entry]:
    """Reads all entries that a reader has now."""
    return list(_drain(reader))


def _drain(reader: Reader) -> Iterator[Entry]:
    while entries := reader.read(0):
        yield from entries


def data(entries: list[Entry], namespace: str | None = None) -> list[bytes]:
    """The data of the entries of one namespace, or of all namespaces."""
    return [entry.data for entry in entries if namespace in (None, entry.namespace)]
