"""Keeps a store small and quick to load: expires outputs, writes snapshots and trims logs."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Sized

from agentspec.errors import RecordError, StoreError, StoreUnavailableError
from agentspec.store.base import NamespaceInfo, Store
from agentspec.store.clock import STEP_SECONDS, SteadyClock
from agentspec.store.codec import Codec
from agentspec.store.config import SharingConfig
from agentspec.store.replication.coverage import Coverage
from agentspec.store.replication.deletion import drop_snapshot
from agentspec.store.replication.health import Health
from agentspec.store.replication.interfaces import LearningEngine
from agentspec.store.replication.snapshots import write_snapshot

# Interval between full checks of all namespaces, including those without new entries.
_THOROUGH_SECONDS = 600.0
# Writing snapshots may take at most this share of the time.
_SNAPSHOT_SHARE = 0.05
# A log may outgrow its quota by this share before it is trimmed.
_QUOTA_SLACK = 0.125


class _LeftOutError(Exception):
    """The snapshot that was taken is not to be written: the engine was cleared, or an entry could not be read, maybe
    before it was taken."""


class Keeper:
    """Runs in every replica. A replica that does not hold the store's lease only expires its own outputs.

    Thread-safe; rounds of run() take turns.
    """

    def __init__(
        self,
        engine: LearningEngine,
        store: Store,
        codec: Codec,
        config: SharingConfig,
        coverage: Coverage,
        health: Health,
        *,
        owner: str,
        stopping: threading.Event,
        expire: Callable[[str, int], Sized],
    ) -> None:
        """`expire`: deletes a namespace's outputs from before a time from the engine, and returns what it has deleted."""
        self.clock = SteadyClock()
        """The clock that times outputs."""
        self._expiry_clock = self.clock
        # The store's clock, less time.monotonic().
        self._store_offset = math.inf
        self._engine = engine
        self._store = store
        self._codec = codec
        self._config = config
        self._coverage = coverage
        self._health = health
        self._owner = owner
        self._stopping = stopping
        self._expire_outputs = expire
        self._running = threading.Lock()
        self._random = random.Random()
        self._held_lease = False
        self._lock = threading.Lock()  # guards the next four
        self._grown: dict[str, int] = {}
        self._rewrite: set[str] = set()
        self._left_out: set[str] = set()
        self._sizes = {"stored_bytes": 0, "stored_namespaces": 0}
        self._snapshots_stopped = False
        self._kept_tokens: dict[str, int] = {}
        self._next_thorough = 0.0
        self._next_snapshots = 0.0
        self._next_expiry = 0.0

    def pause(self) -> float:
        """Seconds until the next run, with jitter, so that replicas do not all ask for the lease at once."""
        return self._config.keep_seconds * self._random.uniform(0.75, 1.25)

    def begin(self, last_time: float) -> None:
        """Sets the clock that decides what has expired; called before anything expires. `last_time`: when the store was
        last appended to; 0 if never. Raises StoreError."""
        self._expiry_clock = SteadyClock(last_time or math.inf)
        self._ask_clock()

    def _ask_clock(self) -> None:
        if self._config.ttl_seconds:
            self._store_offset = self._store.info().time - time.monotonic()

    def expired_before(self) -> int:
        """The time, in seconds since 1970, before which finished outputs have expired; 0 if outputs never expire.

        What a wrong clock deletes is lost for all replicas. So a clock that is ahead of the store's does not count.
        """
        if not self._config.ttl_seconds:
            return 0
        now, by_store = self._expiry_clock.now(), time.monotonic() + self._store_offset
        return math.floor((by_store if now > by_store + STEP_SECONDS else now) - self._config.ttl_seconds)

    def grew(self, namespace: str, num_bytes: int) -> None:
        """Notes that an entry of the namespace's log was read."""
        with self._lock:
            self._grown[namespace] = self._grown.get(namespace, 0) + num_bytes

    def rewrite(self, namespace: str) -> None:
        """Notes that the namespace's snapshot is outdated."""
        with self._lock:
            self._rewrite.add(namespace)

    def leave_out(self, namespace: str) -> None:
        """Leaves the namespace's snapshot to other replicas, because this engine does not hold all of the namespace."""
        with self._lock:
            self._left_out.add(namespace)

    def stop_snapshots(self) -> None:
        """Stops writing snapshots, because this engine no longer holds all of any namespace."""
        self._snapshots_stopped = True

    def sizes(self) -> dict[str, int]:
        """What the store held at this replica's last full check, made while it held the lease."""
        with self._lock:
            return dict(self._sizes)

    def run(self, thoroughly: bool = False) -> None:
        """Runs one round as far as the store allows, then raises the first StoreError. The next round continues."""
        with self._running:
            now = time.monotonic()
            self._expire(now, thoroughly)
            self._ask_clock()
            if not self._store.lease(self._owner, 3 * self._config.keep_seconds + 30.0):
                self._held_lease = False
                self._next_thorough = 0.0
                with self._lock:
                    self._grown.clear()
                self._advance_all()
                return
            if not self._snapshots_stopped and (thoroughly or not self._held_lease or now >= self._next_thorough):
                # What changed since the last snapshot, only the one who held the lease before could tell. Later, others may
                # have removed a snapshot, as the deletion of a request does.
                self._kept_tokens.clear()
            self._held_lease = True
            errors: list[StoreError] = []
            if thoroughly or now >= self._next_snapshots:
                self._write_snapshots(errors)
                took = time.monotonic() - now
                self._next_snapshots = time.monotonic() + took / _SNAPSHOT_SHARE
            # A store that is full takes no snapshots, and needs this most.
            self._trim(now, thoroughly, errors)
            if errors:
                raise errors[0]
            if self._snapshots_stopped:
                # Another replica may be able to write them.
                self._release()

    def give_up(self) -> None:
        """Leaves the lease to others, who would wait for its end otherwise. Raises StoreError."""
        with self._running:
            self._release()

    def _release(self) -> None:
        if self._held_lease:
            self._held_lease = False
            self._store.lease(self._owner, 0)

    def _expire(self, now: float, thoroughly: bool) -> None:
        if not self._config.ttl_seconds or (now < self._next_expiry and not thoroughly):
            return
        self._next_expiry = now + min(max(self._config.ttl_seconds / 20, 1.0), 3600.0)
        before = self.expired_before()
        for space in self._engine.namespaces():
            if self._expire_outputs(space.name, before):
                self.rewrite(space.name)

    def _advance_all(self) -> None:
        """Whoever does not write snapshots must not remember all that it read since it started."""
        for name in self._changed_namespaces():
            self._advance(name)

    def _advance(self, name: str) -> None:
        self._coverage.begin(name)
        self._coverage.advance(name, frozenset(self._engine.snapshot(name).unsealed.tolist()))

    def _write_snapshots(self, errors: list[StoreError]) -> None:
        if self._snapshots_stopped:
            self._advance_all()
            return
        with self._lock:
            rewrite, self._rewrite = self._rewrite, set()
            left_out = set(self._left_out)
        failed: list[str] = []
        names = deque(dict.fromkeys([*rewrite, *self._changed_namespaces()]))
        try:
            while names and not self._stopping.is_set():
                if names[0] in left_out:
                    self._advance(names.popleft())
                elif self._write_snapshot(names[0], names[0] in rewrite, errors):
                    names.popleft()
                elif isinstance(errors[-1], StoreUnavailableError):
                    break
                else:
                    failed.append(names.popleft())
        finally:
            # Those that are left have their turn in the next round.
            with self._lock:
                self._rewrite |= rewrite.intersection(names, failed)
            for name in (*names, *failed):
                self._kept_tokens.pop(name, None)

    def _write_snapshot(self, name: str, anew: bool, errors: list[StoreError]) -> bool:
        self._coverage.begin(name)
        try:
            num_bytes = write_snapshot(
                self._engine,
                self._store,
                self._codec,
                name,
                lambda unsealed: self._covered(name, unsealed),
                now=self.clock.now(),
                anew=anew,
            )
        except _LeftOutError:
            return True
        except StoreError as error:
            if isinstance(error, RecordError) and error.is_readable_elsewhere:
                self.leave_out(name)
                return True
            errors.append(error)
            return False
        if num_bytes is None:
            # The next round finds it rewritten.
            self.rewrite(name)
        elif num_bytes:
            self._health.add("snapshots")
            self._health.add("snapshot_bytes", num_bytes)
        return True

    def _covered(self, name: str, unsealed: Container[int]) -> str:
        with self._lock:
            if self._snapshots_stopped or name in self._left_out:
                raise _LeftOutError
        return self._coverage.advance(name, unsealed)

    def _changed_namespaces(self) -> list[str]:
        """Those whose number of tokens is another one than at the last call."""
        before = self._kept_tokens
        self._kept_tokens = {space.name: space.num_tokens for space in self._engine.namespaces()}
        for name in self._coverage.prune(self._kept_tokens):
            self._advance(name)
        return [name for name, num_tokens in self._kept_tokens.items() if before.get(name) != num_tokens]

    def _trim(self, now: float, thoroughly: bool, errors: list[StoreError]) -> None:
        quota = self._config.quota_bytes
        with self._lock:
            grown = {name for name, num_bytes in self._grown.items() if quota and num_bytes > quota * _QUOTA_SLACK}
        is_thorough = thoroughly or now >= self._next_thorough
        if not grown and not is_thorough:
            return
        stored_bytes = num_namespaces = 0
        expired = self.expired_before()
        try:
            for info in self._store.namespaces():
                stored_bytes += info.log_bytes + info.snapshot_bytes
                num_namespaces += 1
                self._trim_namespace(info, expired, is_thorough, errors)
        except StoreError as error:
            errors.append(error)
            return
        with self._lock:
            self._sizes = {"stored_bytes": stored_bytes, "stored_namespaces": num_namespaces}
        if is_thorough:
            self._next_thorough = now + _THOROUGH_SECONDS

    def _drop_expired_snapshot(self, namespace: str, expired: int) -> None:
        """Removes a snapshot all of whose outputs have expired, because those who could write it again are gone."""
        data = self._store.manifest(namespace)
        try:
            is_expired = data is not None and self._codec.decode_manifest(namespace, data).time < expired
        except RecordError:
            # Others may read it, or write another in its place.
            return
        if is_expired:
            drop_snapshot(self._store, self._codec, namespace, self.clock.now())

    def _trim_namespace(self, info: NamespaceInfo, expired: int, is_thorough: bool, errors: list[StoreError]) -> None:
        quota = self._config.quota_bytes
        try:
            if expired and info.last_time and info.last_time < expired:
                # A tenant may have come back since the namespaces were listed.
                self._store.remove_namespace(info.namespace, before=expired)
            elif expired and is_thorough:
                self._store.trim(info.namespace, before=expired)
                self._drop_expired_snapshot(info.namespace, expired)
            if quota and info.log_bytes > quota:
                self._store.trim(info.namespace, max_bytes=quota)
        except StoreUnavailableError:
            raise
        except StoreError as error:
            # What stands in this one's place is no reason to let the others grow.
            errors.append(error)
        with self._lock:
            self._grown.pop(info.namespace, None)
