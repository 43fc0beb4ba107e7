"""Keeps an engine and a store in step, off the path of decoding.

    step ──publish──> Outbox ──writer──> log ──follower──> Engine.add, in this replica and in all others
                                         snapshot <──keeper── Engine.snapshot

Three threads, each with its own tries after a failure:

    writer      takes finished outputs from the outbox and appends them, in batches
    follower    loads what the store holds, then follows the logs: outputs of other replicas, deletions
    keeper      lets outputs expire; in one replica at a time, it also writes snapshots and trims the logs

The step calls publish() alone, which puts a reference into a queue. Whatever fails here costs drafts only.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from agentspec.engine import request_hash
from agentspec.errors import (
    AgentspecError,
    RecordError,
    SegmentError,
    StoreError,
    StoreResetError,
    StoreUnavailableError,
)
from agentspec.store.base import CONTROL, Entry, Reader, Store, scan_all
from agentspec.store.codec import Codec
from agentspec.store.config import SharingConfig
from agentspec.store.records import ANY_NAMESPACE, Deletion, OutputRecord
from agentspec.store.replication.backoff import Retry
from agentspec.store.replication.coverage import Coverage
from agentspec.store.replication.deletion import Deleted, delete_namespaces
from agentspec.store.replication.health import Health
from agentspec.store.replication.interfaces import LearningEngine
from agentspec.store.replication.keeper import Keeper
from agentspec.store.replication.outbox import GATHER_SECONDS, Outbox, OutputQueue, Publisher
from agentspec.store.replication.snapshots import INDEX_GROWTH, Loaded, load_snapshot, shares
from agentspec.store.replication.tombstones import SeenIds, Tombstones
from agentspec.store.replication.writer import Writer

logger = logging.getLogger("agentspec")

# The follower lets entries gather as the outbox does, because a read costs as much, unless it got this many at once.
_MOST_GATHERED = 64
# At most this number of outputs wait for the engine to index them.
_MOST_WAITING = 16
# Longest time, in seconds, that a thread waits before it checks whether to stop. A store that has news ends it.
_WAIT = 0.5
_SEEN_IDS = 1 << 15
_SNAPSHOT_TRIES = 3
# Interval, in seconds, at which the listener is told of the store's health.
_HEALTH_SECONDS = 2.0


class Sharing(Publisher):
    """Stores an engine's finished outputs, so that they outlive it and reach other replicas, and gives it theirs.

    Owns its threads and readers; the caller owns the engine and the store.
    """

    def __init__(
        self,
        engine: LearningEngine,
        store: Store,
        codec: Codec,
        config: SharingConfig,
        *,
        outbox: OutputQueue | None = None,
    ) -> None:
        """`outbox`: where the writer takes outputs from; None: publish() puts them into one made here."""
        self.config = config
        self.ready = threading.Event()
        """Set when what the store held is loaded."""
        self._engine = engine
        self._store = store
        self._codec = codec
        self._health = Health()
        self._tombstones = Tombstones()
        self._coverage = Coverage()
        self._seen = SeenIds(_SEEN_IDS)
        # Ids that a snapshot had, or the engine when the store lost its contents: they may come again in the log.
        self._known: dict[str, frozenset[int]] = {}
        # Where to go on in the logs of the namespaces that the engine has already.
        self._loaded: dict[str, str] = {}
        # Namespaces that the engine had when this exchange was resumed.
        self._held: frozenset[str] = frozenset()
        self._stopping = threading.Event()
        self._num_unreadable = 0
        self._is_resumed = False
        self._begun = False
        self._listener: Callable[[dict[str, Any]], None] | None = None
        self._keeper = Keeper(
            engine,
            store,
            codec,
            config,
            self._coverage,
            self._health,
            owner=uuid.uuid4().hex,
            stopping=self._stopping,
            expire=self._expire,
        )
        super().__init__(Outbox(config.queue_tokens) if outbox is None else outbox, self._keeper.clock)
        self._writer = Writer(
            engine=engine,
            store=store,
            codec=codec,
            outbox=self._outbox,
            tombstones=self._tombstones,
            seen=self._seen,
            health=self._health,
            on_failure=self._failed,
        )
        self._retries = {name: Retry(self._stopping, self._breaker_opened) for name in ("writer", "follower")}
        loops = {"writer": self._write, "follower": self._follow, "keeper": self._keep}
        self._threads = [
            threading.Thread(target=loop, name=f"agentspec-store-{name}", daemon=True) for name, loop in loops.items()
        ]

    def start(self) -> bool:
        """Starts the threads and waits for what the store holds; False if that takes longer than load_seconds."""
        self.begin()
        return self.ready.wait(self.config.load_seconds)

    def begin(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def resume(self) -> None:
        """Prepares for an engine that an earlier exchange has filled; called before the start. No snapshots are written,
        because the engine may lack outputs that the store's snapshots have."""
        self._is_resumed = True
        self._keeper.stop_snapshots()

    def refused(self, error: Exception) -> None:
        """Notes an output of another replica that the engine did not take."""
        self._health.add("skipped_records")
        self._failed("reading a record", error)

    def engine_cleared(self) -> None:
        """Notes that the engine forgot everything. The store keeps its outputs but gets no more snapshots from here."""
        self._keeper.stop_snapshots()

    def forget(self, namespace: str) -> Deleted:
        """Deletes all finished outputs of a namespace from the store and from all replicas, this one included. Raises
        StoreError if some replica may not have been told; the call must then be repeated."""
        return delete_namespaces(self._store, self._codec, [namespace], self._keeper.clock.now())

    def keep_now(self) -> None:
        """Runs a full round of the keeper now; raises StoreError if it fails."""
        self._keeper.run(thoroughly=True)

    def close(self, timeout: float = 5.0) -> None:
        """Tries for `timeout` seconds to deliver waiting outputs, then ends the threads, for which it waits as long again at
        most: SGLang kills a scheduler that takes longer than 15 seconds to end."""
        self.flush(timeout)
        self._stopping.set()
        self._outbox.close()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(deadline - time.monotonic(), 0.0))
        self._warn_of_lost(self._store.url)

    def on_health(self, listener: Callable[[dict[str, Any]], None]) -> None:
        """Calls `listener` with health() every few seconds, on a thread of this object."""
        self._listener = listener

    def health(self) -> dict[str, Any]:
        """The block `store` of `/server_info`: no text, no tenant, no password."""
        failing = {name: retry.num_failures for name, retry in self._retries.items() if retry.num_failures}
        return {
            "url": self._store.url,
            "ready": self.ready.is_set(),
            "connected": not failing,
            "failures_in_a_row": failing,
            "breaker_open": any(retry.is_open for retry in self._retries.values()),
            "broken_logs": max(self._writer.num_broken, self._num_unreadable),
            "queued_outputs": len(self._outbox),
            "queued_tokens": self._outbox.waiting_tokens,
            "dropped_outputs": self._outbox.num_dropped,
            **self._keeper.sizes(),
            **self._health.snapshot(),
        }

    def _delivers(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _write(self) -> None:
        # The process that publishes outputs may end.
        with suppress(EOFError):
            self._writer.run(self._retries["writer"], self._stopping)

    # The follower's thread.

    def _follow(self) -> None:
        retry = self._retries["follower"]
        reader: Reader | None = None
        next_health = 0.0
        while not self._stopping.is_set():
            try:
                if self._listener is not None and time.monotonic() >= next_health:
                    next_health = time.monotonic() + _HEALTH_SECONDS
                    self._listener(self.health())
                if reader is None:
                    reader = self._store.reader(self._load())
                entries = reader.read(_WAIT if self.ready.is_set() else 0.0)
                retry.succeeded()
                self._num_unreadable = len(reader.broken)
                self._take_all(entries)
                if not entries:
                    self._caught_up()
                elif self.ready.is_set() and len(entries) < _MOST_GATHERED:
                    self._stopping.wait(GATHER_SECONDS)
            except Exception as error:  # noqa: BLE001 - the thread must go on; _failed() logs it
                self._failed("following the store", error)
                if isinstance(error, StoreResetError):
                    self._store_was_reset()
                else:
                    retry.failed()
        if reader is not None:
            reader.close()

    def _take_all(self, entries: Sequence[Entry]) -> None:
        """Waits for the indexing thread now and then, because a long log must not delay the prompts it also indexes."""
        num_waiting = 0
        for entry in entries:
            num_waiting += self._take(entry)
            if num_waiting == _MOST_WAITING:
                self._engine.wait_indexed()
                num_waiting = 0
        if num_waiting:
            self._engine.wait_indexed()

    def _load(self) -> dict[str, str]:
        """Divides the engine's budget among the namespaces and loads their snapshots, least recently used namespaces
        first. Returns where to go on in each log."""
        positions: dict[str, str] = {}
        if self._is_resumed:
            self._note_known()
            self._held = frozenset(self._known)
            self._is_resumed = False
        try:
            for entry in scan_all(self._store, CONTROL):
                self._take(entry)
                positions[CONTROL] = entry.position
        except StoreUnavailableError:
            raise
        except StoreError as error:
            # The reader tries this log again from time to time.
            self._failed("reading the log of deletions", error)
        infos = sorted(self._store.namespaces(), key=lambda info: -info.last_time)
        if not self._begun:
            # Later, this replica's own outputs would confirm a wrong clock.
            self._keeper.begin(infos[0].last_time if infos else 0.0)
            self._begun = True
        budget = self._engine.config.budget_bytes
        sizes = [min(max(info.snapshot_bytes, info.log_bytes * INDEX_GROWTH), budget) for info in infos]
        for info, size, share in reversed(list(zip(infos, sizes, shares(sizes, budget), strict=True))):
            room = None if share == size else share
            if info.namespace in self._loaded:
                pass
            elif size and not share:
                self._keeper.leave_out(info.namespace)
                self._loaded[info.namespace] = info.last_position or ""
            elif info.namespace in self._held:
                self._loaded[info.namespace] = self._tail(info.namespace, room)
            else:
                self._load_namespace(info.namespace, room)
            if self._loaded[info.namespace]:
                positions[info.namespace] = self._loaded[info.namespace]
        return positions

    def _tail(self, namespace: str, room: int | None) -> str:
        """Where to go on in a log so that what follows fits into `room` bytes of index."""
        if room is None:
            return ""
        try:
            return self._store.tail(namespace, room // INDEX_GROWTH)[0] or ""
        except StoreUnavailableError:
            raise
        except StoreError as error:
            # The reader tries this log again from time to time.
            self._failed("reading the end of a log", error)
            return ""

    def _load_namespace(self, namespace: str, room: int | None) -> None:
        loaded = Loaded()
        for tries_left in reversed(range(_SNAPSHOT_TRIES)):
            try:
                loaded = load_snapshot(self._engine, self._store, self._codec, namespace, room)
                break
            except StoreUnavailableError:
                raise
            except (StoreError, SegmentError) as error:
                if tries_left and not isinstance(error, RecordError | SegmentError):
                    # Another replica may have replaced the snapshot meanwhile.
                    continue
                # The log holds the same outputs, but they must be indexed again.
                self._failed("loading a snapshot", error)
                self._leave_to_readers(namespace, error)
                loaded = Loaded(self._tail(namespace, room))
                break
        ids = loaded.output_ids.tolist()
        self._loaded[namespace] = loaded.position
        self._coverage.start(namespace, loaded.position)
        self._health.add("loaded_outputs", len(ids))
        if not loaded.is_most:
            self._keeper.leave_out(namespace)
        until = self._tombstones.of_namespaces().get(namespace, 0.0)
        expired = self._keeper.expired_before()
        num_expired = self._engine.expire(namespace, max(int(until) + 1 if until else 0, expired))
        held = self._known[namespace] = self._held_ids(namespace) if num_expired else frozenset(ids)
        # An append that is tried again while this starts may come after all others.
        self._seen.update([each for each in ids if each in held])
        hashes = frozenset((loaded.output_ids >> 32).tolist())
        for of, request_id in self._tombstones.of_requests():
            if of in (namespace, ANY_NAMESPACE) and request_hash(request_id) in hashes:
                self._engine.delete_request(namespace, request_id)

    def _take(self, entry: Entry) -> bool:
        """Returns whether the engine was given an output."""
        try:
            record = self._codec.decode(entry.namespace, entry.data)
            if isinstance(record, OutputRecord):
                is_added = self._add(entry, record)
                # The engine must have it first: a snapshot that lacks it would count as covering it.
                self._coverage.read(entry.namespace, entry.position, record.output_id)
                return is_added
            self._delete(record)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, others follow; _failed() logs it
            self.refused(error)
            self._leave_to_readers(entry.namespace, error)
        return False

    def _leave_to_readers(self, namespace: str, error: Exception) -> None:
        """A snapshot from here would hide from those who can read it what this replica cannot."""
        if not (isinstance(error, RecordError) and error.is_readable_elsewhere):
            return
        if namespace == CONTROL:
            # It may be a deletion, whose outputs this engine then still has.
            self._keeper.stop_snapshots()
        else:
            self._keeper.leave_out(namespace)

    def _add(self, entry: Entry, record: OutputRecord) -> bool:
        namespace = entry.namespace
        self._keeper.grew(namespace, len(entry.data))
        if self._tombstones.covers(namespace, record.request_id, record.time):
            # A replica that had not heard of the deletion delivered this output late.
            self._health.add("refused_outputs")
            try:
                self._store.remove(namespace, [entry.position])
            except StoreError as error:
                # The next replica that reads the entry tries again.
                self._failed("removing what was deleted", error)
            return False
        if not self._seen.add(record.output_id) or record.output_id in self._known.get(namespace, ()):
            return False
        if record.time < self._keeper.expired_before():
            return False
        self._engine.add(
            namespace,
            record.output_id,
            record.tokens,
            num_prompt_tail=record.num_prompt_tail,
            time=int(record.time),
        )
        if self.ready.is_set():
            self._health.received(len(entry.data), record.time)
        else:
            self._health.add("loaded_outputs")
        return True

    def _delete(self, deletion: Deletion) -> None:
        self._tombstones.add(deletion)
        if deletion.request_id is None:
            gone = self._expire(deletion.namespace, int(deletion.time) + 1)
            self._known[deletion.namespace] = self._known.get(deletion.namespace, frozenset()) - gone
            self._keeper.rewrite(deletion.namespace)
        else:
            everywhere = deletion.namespace == ANY_NAMESPACE
            for name in self._engine_namespaces() if everywhere else [deletion.namespace]:
                if self._engine.delete_request(name, deletion.request_id):
                    self._keeper.rewrite(name)
        self._health.add("deletions")

    def _caught_up(self) -> None:
        self._known.clear()
        if not self.ready.is_set():
            self._engine.flush()
            self.ready.set()

    def _store_was_reset(self) -> None:
        """Prepares for a reader that starts again: the log may now hold outputs that the engine already has."""
        self._health.add("resets")
        self._coverage.forget()
        self._note_known()
        # A snapshot of an older copy may still have what was deleted.
        for name in self._tombstones.namespaces():
            self._keeper.rewrite(name)

    def _note_known(self) -> None:
        for name in self._engine_namespaces():
            self._known[name] = self._held_ids(name)
            self._keeper.rewrite(name)

    def _expire(self, namespace: str, before: int) -> frozenset[int]:
        """Deletes what the engine has of a namespace from before a time, in seconds since 1970; returns the ids. An import may
        bring the outputs again, so they no longer count as seen."""
        held = self._held_ids(namespace)
        gone = held - self._held_ids(namespace) if self._engine.expire(namespace, before) else frozenset()
        self._seen.discard(gone)
        return gone

    def _held_ids(self, namespace: str) -> frozenset[int]:
        """The ids of the engine's outputs."""
        snapshot = self._engine.snapshot(namespace)
        ids = [snapshot.unsealed, *(segment.output_ids for segment in snapshot.segments)]
        return frozenset(np.concatenate(ids).tolist())

    def _engine_namespaces(self) -> list[str]:
        return [space.name for space in self._engine.namespaces()]

    # The keeper's thread.

    def _keep(self) -> None:
        while not self.ready.wait(_WAIT):
            if self._stopping.is_set():
                return
        while not self._stopping.wait(self._keeper.pause()):
            try:
                self._keeper.run()
            except Exception as error:  # noqa: BLE001 - the thread must go on; _failed() logs it
                self._failed("keeping the store", error)
        try:
            self._keeper.give_up()
        except Exception as error:  # noqa: BLE001 - whatever it is, the lease ends by itself; _failed() logs it
            self._failed("giving up the lease", error)

    # Any thread.

    def _failed(self, what: str, error: Exception) -> None:
        self._health.failed(what, error)
        if not isinstance(error, AgentspecError):
            logger.error("agentspec: %s failed", what, exc_info=error)

    def _breaker_opened(self) -> None:
        logger.warning(
            "agentspec: the store %s keeps failing (%s); decoding goes on, finished outputs wait, the oldest are "
            "dropped beyond %d tokens",
            self._store.url,
            self._health.snapshot()["last_error"]["message"],
            self.config.queue_tokens,
        )
