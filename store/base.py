"""The interface of a store: for each namespace an ordered log of entries and a snapshot.

A store holds bytes. It does not know what they mean (see records.py), which tenants there are (see namespaces.py) or
when to write, trim or take a snapshot (see replication/).

    scope          one model with one tokenizer; a store is opened for one scope and sees no other
    namespace      32 hexadecimal digits that stand for a tenant; CONTROL for entries about other namespaces
    log            entries in one order that all readers see, each with a position
    snapshot       named segments, each some chunks of bytes, and a manifest that says which of them count

The log is the truth; a snapshot is made from it and can be made again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

CONTROL = ""
"""The namespace of entries that speak of other namespaces: deletions."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The model and the tokenizer that token ids belong to."""

    model: str
    """The name that replicas of one model share."""
    tokenizer: str
    """The SHA-256 of its tokenizer, as hex, or whatever else names it."""

    @property
    def id(self) -> str:
        """32 hexadecimal digits."""
        return hashlib.sha256(f"{len(self.model)}:{self.model}{self.tokenizer}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a namespace's log."""

    namespace: str
    position: str
    """Its position in the namespace's log, in the store's own format; never reused."""
    data: bytes


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """Sizes of one namespace in a store."""

    namespace: str
    num_entries: int
    log_bytes: int
    """Bytes of the entries' data or, where the store cannot tell exactly, of the memory that the log takes."""
    snapshot_bytes: int
    last_position: str | None
    """Position of the latest entry; None if the log is empty and no earlier entry is known."""
    last_time: float
    """When the latest entry was appended, in seconds since 1970 by the store's clock; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """What a store is and how much it holds; of all scopes together where it cannot tell them apart."""

    kind: str
    """"sqlite" or "redis"."""
    server: str
    """Product and version behind it."""
    used_bytes: int
    limit_bytes: int
    """0 means no limit."""
    time: float
    """Now, in seconds since 1970 by the store's clock."""


class Reader(Protocol):
    """Follows all logs of a scope, CONTROL's included. Not thread-safe; holds its own connection."""

    broken: dict[str, str]
    """Namespaces whose logs cannot be read because something else is stored in their place, and the reason. They are
    tried again every few seconds; all others are read as usual."""

    def read(self, wait: float, max_bytes: int = 8 << 20) -> list[Entry]:
        """The next entries, at most about `max_bytes` of them, each log in its order.

        Waits up to `wait` seconds for the first one; an empty list means that there was none. No entry is
        returned twice. A namespace's log that appears while reading is read from its beginning.

        Raises:
            StoreResetError: The store lost its contents (flushed, or replaced by an older copy). Raised once; the
                reader goes on from the beginning of what is there now.
            StoreUnavailableError: The store does not answer; nothing was skipped, read again later.
        """

    def close(self) -> None:
        """Closes the connection. Never raises; may be called twice."""


class Store(Protocol):
    """The logs and snapshots of one scope. Thread-safe, except for readers.

    Every call ends within the store's time-outs. It raises StoreUnavailableError if the store does not answer, and
    StoreError if the store was closed or answers with an error that a retry may not mend.

    Entries of CONTROL that are older than 30 days are removed when others are appended to it.
    """

    url: str
    """Where it is, without passwords."""
    scope: Scope

    def append(self, entries: Sequence[tuple[str, bytes]]) -> None:
        """Appends (namespace, data) pairs in their order, all or none.

        If the store holds something other than a log in the place of some logs, entries of all other logs are
        appended, and BrokenLogError says which were not. After StoreUnavailableError it is unknown whether the entries
        were appended: append them again. They may then be stored twice, so readers must recognise them by content.
        """

    def reader(self, positions: Mapping[str, str] | None = None) -> Reader:
        """Returns a reader that starts after the given positions, and at the beginning of all other logs."""

    def scan(self, namespace: str, after: str | None = None, max_bytes: int = 8 << 20) -> list[Entry]:
        """The log's next entries after a position: about `max_bytes` at most, but at least one; [] at its end."""

    def tail(self, namespace: str, max_bytes: int, after: str | None = None) -> tuple[str | None, int]:
        """Where the log's latest entries begin that take about `max_bytes` together, but at least one entry, and that
        come after a position: the position before them, which is `after` if there are no others. With it, their bytes.
        """

    def namespaces(self) -> Iterator[NamespaceInfo]:
        """All namespaces that have a log or a snapshot, CONTROL left out, in no order."""

    def remove(self, namespace: str, positions: Sequence[str]) -> int:
        """Removes entries permanently; returns the number of entries removed."""

    def remove_namespace(self, namespace: str, *, before: float | None = None) -> bool:
        """Removes a namespace's log and snapshot permanently; returns False if there were none. With `before`, in seconds
        since 1970 by the store's clock, does nothing unless the latest entry was appended before then."""

    def trim(self, namespace: str, *, max_bytes: int | None = None, before: float | None = None) -> int:
        """Removes a log's oldest entries: down to about `max_bytes`, and those appended before a time in seconds
        since 1970 by the store's clock. Returns how many."""

    def manifest(self, namespace: str) -> bytes | None:
        """The manifest of the namespace's snapshot, if it has one."""

    def segment(self, namespace: str, name: str) -> Iterator[bytes]:
        """The chunks of a segment in order; raises StoreError if the segment is missing or incomplete."""

    def write_segment(self, namespace: str, name: str, chunks: Iterable[bytes]) -> None:
        """Writes a segment, replacing one of the same name. A writer that dies leaves no valid segment, and nothing
        that stays for good."""

    def write_manifest(self, namespace: str, manifest: bytes, segments: Collection[str]) -> None:
        """Makes this the manifest, in one step, and removes all segments but those named."""

    def lease(self, owner: str, seconds: float) -> bool:
        """Requests the exclusive right to maintain this scope for `seconds` seconds; returns whether `owner` has it.

        Another call by the owner extends the lease; `seconds` of 0 releases it.
        """

    def compact(self) -> None:
        """Returns freed space to the system, where the store does not do so by itself."""

    def info(self) -> StoreInfo:
        """What the store is and how much it holds."""

    def close(self) -> None:
        """Closes all connections except those of readers. Never raises; may be called twice."""


def scan_all(store: Store, namespace: str) -> Iterator[Entry]:
    """All entries of a namespace's log, including those that are appended during the scan."""
    position = None
    while entries := store.scan(namespace, position):
        yield from entries
        position = entries[-1].position
