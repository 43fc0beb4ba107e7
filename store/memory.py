"""The store in this process's memory: for tests, and where nothing may or can be stored permanently."""

from __future__ import annotations

import secrets
import threading
import time
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agentspec.errors import StoreError, StoreResetError
from agentspec.store.base import CONTROL, Entry, NamespaceInfo, Scope, StoreInfo
from agentspec.store.clock import SteadyClock
from agentspec.store.rules import (
    CONTROL_SECONDS,
    check_entries,
    check_model,
    check_namespace,
    check_tenant,
    closed,
    missing_segment,
)


@dataclass(slots=True)
class _Log:
    # Parallel lists in the order of the log.
    numbers: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    last: int = 0

    def drop(self, start: int, stop: int) -> int:
        for column in (self.numbers, self.times, self.entries):
            del column[start:stop]
        return stop - start


@dataclass(slots=True)
class _Snapshot:
    manifest: bytes | None = None
    segments: dict[str, tuple[bytes, ...]] = field(default_factory=dict)

    def num_bytes(self) -> int:
        return len(self.manifest or b"") + sum(len(chunk) for chunks in self.segments.values() for chunk in chunks)


class _Contents:
    """The contents of one scope."""

    def __init__(self) -> None:
        self.epoch = secrets.token_hex(8)
        self.last = 0
        self.logs: dict[str, _Log] = {}
        self.snapshots: dict[str, _Snapshot] = {}
        self.owner = ""
        self.leased_until = 0.0


class _Memory:
    """All scopes of a store."""

    def __init__(self) -> None:
        # Guards everything below; notified of every entry.
        self.changed = threading.Condition()
        self.models: dict[str, str] = {}
        self.scopes: dict[str, _Contents] = {}

    def contents(self, scope: Scope) -> _Contents:
        if scope.id not in self.scopes:
            self.scopes[scope.id] = _Contents()
        return self.scopes[scope.id]


_named: dict[str, _Memory] = {}
_named_lock = threading.Lock()


class MemoryPlace:
    """The `Place` of a memory:// URL. All stores of one name in a process share their contents; a store without a name
    has its own."""

    def __init__(self, name: str = "") -> None:
        self.url = f"memory://{name}"
        with _named_lock:
            self._memory = _named.setdefault(name, _Memory()) if name else _Memory()

    def open(self, scope: Scope, *, create: bool = True) -> MemoryStore:
        """Raises StoreError if the model has another tokenizer, or is new and `create` is False."""
        memory = self._memory
        with memory.changed:
            check_model(self.url, scope, memory.models.get(scope.model), list(memory.models), create=create)
            memory.models[scope.model] = scope.tokenizer
        return MemoryStore(self.url, scope, memory)

    def scopes(self) -> list[Scope]:
        """All scopes that were opened."""
        with self._memory.changed:
            return [Scope(model, tokenizer) for model, tokenizer in self._memory.models.items()]

    def delete_scope(self, scope: Scope) -> bool:
        """Removes a scope; returns False if nothing was stored of it."""
        with self._memory.changed:
            known = self._memory.models.get(scope.model) == scope.tokenizer
            if known:
                del self._memory.models[scope.model]
            self._memory.changed.notify_all()
            return self._memory.scopes.pop(scope.id, None) is not None or known

    def wipe(self) -> None:
        """Loses everything at once, as a flushed server does."""
        with self._memory.changed:
            self._memory.models.clear()
            self._memory.scopes.clear()
            self._memory.changed.notify_all()


class MemoryStore:
    """A `Store` that lives as long as this process, or the last reference to it if its URL has no name.

    Calls wait only for other threads' calls. Positions are decimal numbers. A crash loses everything.
    """

    def __init__(self, url: str, scope: Scope, memory: _Memory) -> None:
        self.url = url
        self.scope = scope
        self._memory = memory
        self._clock = SteadyClock()
        self._closed = False

    def _contents(self) -> _Contents:
        if self._closed:
            raise closed(self.url)
        return self._memory.contents(self.scope)

    def append(self, entries: Sequence[tuple[str, bytes]]) -> None:
        check_entries(entries)
        with self._memory.changed:
            contents, now = self._contents(), self._clock.now()
            # Registers the model again after wipe().
            self._memory.models.setdefault(self.scope.model, self.scope.tokenizer)
            for namespace, data in entries:
                contents.last += 1
                log = contents.logs.setdefault(namespace, _Log())
                log.numbers.append(contents.last)
                log.times.append(now)
                log.entries.append(Entry(namespace, str(contents.last), data))
                log.last = contents.last
                if namespace == CONTROL:
                    log.drop(0, bisect_right(log.times, now - CONTROL_SECONDS))
            self._memory.changed.notify_all()

    def reader(self, positions: Mapping[str, str] | None = None) -> MemoryReader:
        starts = {namespace: _number(position) for namespace, position in (positions or {}).items()}
        with self._memory.changed:
            return MemoryReader(self._memory, self.scope, starts, self._contents().epoch)

    def scan(self, namespace: str, after: str | None = None, max_bytes: int = 8 << 20) -> list[Entry]:
        check_namespace(namespace)
        start = 0 if after is None else _number(after)
        with self._memory.changed:
            log = self._contents().logs.get(namespace, _Log())
            found: list[Entry] = []
            for entry in log.entries[bisect_right(log.numbers, start) :]:
                if found and max_bytes < len(entry.data):
                    break
                found.append(entry)
                max_bytes -= len(entry.data)
            return found

    def namespaces(self) -> Iterator[NamespaceInfo]:
        with self._memory.changed:
            contents = self._contents()
            names = (contents.logs.keys() | contents.snapshots.keys()) - {CONTROL}
            infos = [self._info(contents, namespace) for namespace in names]
        return iter(infos)

    def _info(self, contents: _Contents, namespace: str) -> NamespaceInfo:
        log = contents.logs.get(namespace, _Log())
        return NamespaceInfo(
            namespace=namespace,
            num_entries=len(log.entries),
            log_bytes=sum(len(entry.data) for entry in log.entries),
            snapshot_bytes=contents.snapshots.get(namespace, _Snapshot()).num_bytes(),
            last_position=str(log.last) if log.last else None,
            last_time=log.times[-1] if log.times else 0.0,
        )

    def remove(self, namespace: str, positions: Sequence[str]) -> int:
        check_namespace(namespace)
        doomed = {_number(position) for position in positions}
        with self._memory.changed:
            log = self._contents().logs.get(namespace, _Log())
            found = [index for index, number in enumerate(log.numbers) if number in doomed]
            for index in reversed(found):
                log.drop(index, index + 1)
            return len(found)

    def remove_namespace(self, namespace: str) -> bool:
        check_namespace(namespace)
        with self._memory.changed:
            contents = self._contents()
            had = [contents.logs.pop(namespace, None), contents.snapshots.pop(namespace, None)]
            return any(part is not None for part in had)

    def trim(self, namespace: str, *, max_bytes: int | None = None, before: float | None = None) -> int:
        check_namespace(namespace)
        with self._memory.changed:
            log = self._contents().logs.get(namespace, _Log())
            stop = 0
            if before is not None:
                stop = next((index for index, at in enumerate(log.times) if at >= before), len(log.times))
            if max_bytes is not None:
                held = sum(len(entry.data) for entry in log.entries[stop:])
                while stop < len(log.entries) and held > max_bytes:
                    held -= len(log.entries[stop].data)
                    stop += 1
            return log.drop(0, stop)

    def manifest(self, namespace: str) -> bytes | None:
        check_tenant(namespace)
        with self._memory.changed:
            return self._contents().snapshots.get(namespace, _Snapshot()).manifest

    def segment(self, namespace: str, name: str) -> Iterator[bytes]:
        check_tenant(namespace)
        with self._memory.changed:
            chunks = self._contents().snapshots.get(namespace, _Snapshot()).segments.get(name)
        if chunks is None:
            raise missing_segment(namespace, name)
        return iter(chunks)

    def write_segment(self, namespace: str, name: str, chunks: Iterable[bytes]) -> None:
        check_tenant(namespace)
        whole = tuple(bytes(chunk) for chunk in chunks)
        with self._memory.changed:
            self._contents().snapshots.setdefault(namespace, _Snapshot()).segments[name] = whole

    def write_manifest(self, namespace: str, manifest: bytes, segments: Collection[str]) -> None:
        check_tenant(namespace)
        with self._memory.changed:
            snapshots = self._contents().snapshots
            held = snapshots.get(namespace, _Snapshot()).segments
            missing = sorted(set(segments) - held.keys())
            if missing:
                raise missing_segment(namespace, missing[0])
            snapshots[namespace] = _Snapshot(bytes(manifest), {name: held[name] for name in held if name in segments})

    def lease(self, owner: str, seconds: float) -> bool:
        with self._memory.changed:
            contents, now = self._contents(), time.monotonic()
            if contents.owner not in ("", owner) and now < contents.leased_until:
                return False
            contents.owner = owner if seconds > 0 else ""
            contents.leased_until = now + seconds
            return seconds > 0

    def compact(self) -> None:
        with self._memory.changed:
            self._contents()

    def info(self) -> StoreInfo:
        with self._memory.changed:
            self._contents()
            used = 0
            for contents in self._memory.scopes.values():
                used += sum(len(entry.data) for log in contents.logs.values() for entry in log.entries)
                used += sum(snapshot.num_bytes() for snapshot in contents.snapshots.values())
        return StoreInfo(kind="memory", server="this process", used_bytes=used, limit_bytes=0)

    def close(self) -> None:
        self._closed = True


class MemoryReader:
    """A `Reader` of a MemoryStore; keeps working after the store is closed."""

    def __init__(self, memory: _Memory, scope: Scope, starts: dict[str, int], epoch: str) -> None:
        self.broken: dict[str, str] = {}
        self._memory = memory
        self._scope = scope
        self._numbers = starts
        self._epoch = epoch
        self._closed = False

    def read(self, wait: float, max_bytes: int = 8 << 20) -> list[Entry]:
        deadline = time.monotonic() + wait
        with self._memory.changed:
            while True:
                if self._closed:
                    raise StoreError("the reader was closed; make another")
                contents = self._memory.contents(self._scope)
                if contents.epoch != self._epoch:
                    self._epoch, self._numbers = contents.epoch, {}
                    raise StoreResetError("the store in memory lost its contents; reading goes on from the beginning")
                entries = self._next(contents, max_bytes)
                left = deadline - time.monotonic()
                if entries or left <= 0:
                    return entries
                self._memory.changed.wait(left)

    def _next(self, contents: _Contents, max_bytes: int) -> list[Entry]:
        found: list[Entry] = []
        for namespace, log in contents.logs.items():
            start = self._numbers.get(namespace, 0)
            if log.last <= start:
                continue
            for index in range(bisect_right(log.numbers, start), len(log.numbers)):
                entry = log.entries[index]
                if found and max_bytes < len(entry.data):
                    return found
                found.append(entry)
                max_bytes -= len(entry.data)
                self._numbers[namespace] = log.numbers[index]
        return found

    def close(self) -> None:
        self._closed = True


def _number(position: str) -> int:
    if not (position.isascii() and position.isdecimal()):
        raise StoreError(f"a position of a store in memory is a decimal number, got {position!r}")
    return int(position)
