"""The store in Redis or Valkey: for replicas on several machines."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentspec.errors import BrokenLogError, StoreError, StoreUnavailableError
from agentspec.store.base import CONTROL, Entry, NamespaceInfo, Scope, StoreInfo
from agentspec.store.redis.address import RedisAddress
from agentspec.store.redis.keys import MODELS, NEWS_LENGTH, RedisKeys
from agentspec.store.redis.nodes import Command, RedisNodes, Session, is_full, passable, whole
from agentspec.store.redis.reader import LAST, START, RedisReader, check_position, entries_of, namespaces_of
from agentspec.store.rules import (
    CONTROL_SECONDS,
    UNFINISHED_SECONDS,
    check_entries,
    check_namespace,
    check_tenant,
    closed,
    missing_segment,
)

_BATCH = 128
_TRIES = 8
_LEASE = b"held by "


class RedisStore:
    """A `Store` in one Redis or Valkey server of version 6.2 or later, or in one slot of a cluster. Its keys are listed
    in keys.py, the commands that it uses in acl.py.

    Time-outs: 2 s for a connection and 5 s for each answer, unless told otherwise. Nothing is retried here, except at
    another node that a cluster names. A reader wakes as soon as there is an entry.

    Crashes: an acknowledged change is as durable as the server's configuration makes it (appendfsync, replicas). If the
    server comes back with less data or none, readers notice by the epoch and the news and raise StoreResetError. A
    client that dies leaves nothing half done: every change is a single command or a MULTI/EXEC transaction, and the
    keys of an unfinished segment expire.

    Idempotence: every call except append() may be repeated. An append that fails because a key that all namespaces
    share holds another type was done at the first attempt, and is not done again when it is retried.

    Times are those of the server's clock, taken from stream ids, which keep rising if the clock is set back. If the
    clock was far ahead for a while, entries from then on seem younger than they are and are trimmed by age late.
    """

    def __init__(self, nodes: RedisNodes, scope: Scope, address: RedisAddress, timeout: float) -> None:
        self.url = nodes.url
        self.scope = scope
        self._nodes = nodes
        self._keys = RedisKeys(scope)
        self._address = address
        self._timeout = timeout
        self._closed = False
        # Whether the last append failed at a key that all namespaces share.
        self._doubtful = False

    def _call(self, *command: Any) -> Any:
        return self._nodes.run(self._keys.epoch, lambda session: session.call(*command))

    def _transaction(self, commands: Sequence[Command]) -> list[Any]:
        """Runs commands in MULTI/EXEC and returns their answers; raises the first error among them."""

        def work(session: Session) -> list[Any]:
            answers = session.transaction(commands)
            assert answers is not None
            return whole(answers)

        return self._nodes.run(self._keys.epoch, work)

    def append(self, entries: Sequence[tuple[str, bytes]]) -> None:
        check_entries(entries)
        if not entries:
            return
        keys = self._keys
        touched = list(dict.fromkeys(namespace for namespace, _ in entries))
        named = [namespace for namespace in touched if namespace != CONTROL]
        begin: Command = ("SET", keys.epoch, secrets.token_hex(8), "NX")
        adds: list[Command] = [("XADD", keys.log(namespace), "*", "d", data) for namespace, data in entries]
        news: list[Command] = [("XADD", keys.news, "MAXLEN", NEWS_LENGTH, "*", "n", each) for each in touched]
        if named:
            news.append(("SADD", keys.names, *named))

        def work(session: Session) -> list[Any]:
            if self._doubtful:
                # Without this check each retry would append to the logs before it fails. Needless news do no harm.
                whole(session.transaction(news) or [])
            answers = session.transaction([begin, *adds, *news])
            assert answers is not None
            self._doubtful = any(isinstance(answer, Exception) for answer in answers[1 + len(adds) :])
            whole(answers[1 + len(adds) :])
            return answers

        began, *answers = self._nodes.run(keys.epoch, work)
        if began is not None:
            # The epoch was missing, so the server had lost its contents.
            self._nodes.run(
                MODELS, lambda session: session.call("HSETNX", MODELS, self.scope.model, self.scope.tokenizer)
            )
        pairs = zip(entries, answers, strict=False)
        refused = {entry[0]: answer for entry, answer in pairs if isinstance(answer, Exception)}
        if CONTROL in touched and CONTROL not in refused:
            last = max(index for index, (namespace, _) in enumerate(entries) if namespace == CONTROL)
            # The earlier of the two clocks counts, because either may be ahead.
            now = min(_milliseconds(answers[last]), int(time.time() * 1000))
            self._call("XTRIM", keys.control, "MINID", f"{max(0, now - int(CONTROL_SECONDS * 1000))}-0")
        if refused:
            reason = next(iter(refused.values()))
            raise BrokenLogError(
                f"the store {self.url} holds something else where it should have the logs of {len(refused)} namespaces; "
                f"remove the keys that stand there: {reason}",
                refused,
            )

    def reader(self, positions: Mapping[str, str] | None = None) -> RedisReader:
        starts = {namespace: check_position(position) for namespace, position in (positions or {}).items()}
        if self._closed:
            raise closed(self.url)
        return RedisReader(RedisNodes(self._address, self._timeout), self.scope, starts, self._timeout)

    def scan(self, namespace: str, after: str | None = None, max_bytes: int = 8 << 20) -> list[Entry]:
        check_namespace(namespace)
        position, left, count = START if after is None else check_position(after), max_bytes, 16
        found: list[Entry] = []
        while position != LAST:
            rows = self._call("XRANGE", self._keys.log(namespace), f"({position}", "+", "COUNT", count)
            for entry in entries_of(namespace, rows):
                if found and len(entry.data) > left:
                    return found
                left -= len(entry.data)
                found.append(entry)
            if len(rows) < count or left <= 0:
                return found
            position = found[-1].position
            count = max(1, min(1024, int(left / ((max_bytes - left) / len(found) + 1)) + 1))
        return found

    def tail(self, namespace: str, max_bytes: int, after: str | None = None) -> tuple[str | None, int]:
        """Reads the entries that it counts."""
        check_namespace(namespace)
        start, end, held = START if after is None else check_position(after), "+", 0
        while start != LAST:
            rows = self._call("XREVRANGE", self._keys.log(namespace), end, f"({start}", "COUNT", _BATCH)
            for entry in entries_of(namespace, rows):
                if held and held + len(entry.data) > max_bytes:
                    return entry.position, held
                held += len(entry.data)
            if len(rows) < _BATCH:
                break
            end = f"({rows[-1][0].decode()}"
        return after, held

    def namespaces(self) -> Iterator[NamespaceInfo]:
        names = namespaces_of(self._call("SMEMBERS", self._keys.names))
        return (info for start in range(0, len(names), _BATCH) for info in self._infos(names[start : start + _BATCH]))

    def _infos(self, names: list[str]) -> Iterator[NamespaceInfo]:
        keys = self._keys
        commands: list[Command] = []
        for name in names:
            commands += [
                ("XINFO", "STREAM", keys.log(name)),
                ("MEMORY", "USAGE", keys.log(name), "SAMPLES", 32),
                ("HVALS", keys.segments(name)),
                ("STRLEN", keys.manifest(name)),
            ]
        answers = self._nodes.run(keys.epoch, lambda session: passable(session.batch(commands)))
        for index, name in enumerate(names):
            stream, used, sizes, manifest = answers[4 * index : 4 * index + 4]
            described = _described(stream)
            last = described.get(b"last-generated-id", START.encode()).decode()
            yield NamespaceInfo(
                namespace=name,
                num_entries=described.get(b"length", 0),
                log_bytes=used or 0,
                snapshot_bytes=sum(int(size) for size in sizes or () if size.isdigit()) + (manifest or 0),
                last_position=last if last != START else None,
                last_time=_milliseconds(last.encode()) / 1000,
            )

    def remove(self, namespace: str, positions: Sequence[str]) -> int:
        check_namespace(namespace)
        removed = 0
        for start in range(0, len(positions), 1024):
            part = [check_position(position) for position in positions[start : start + 1024]]
            removed += self._call("XDEL", self._keys.log(namespace), *part)
        return removed

    def remove_namespace(self, namespace: str, *, before: float | None = None) -> bool:
        check_namespace(namespace)
        keys = self._keys

        def work(session: Session) -> bool | None:
            segments = self._watch_segments(session, namespace)
            if before is not None:
                session.call("WATCH", keys.log(namespace))
                (stream,) = passable(session.batch([("XINFO", "STREAM", keys.log(namespace))]))
                last = _described(stream).get(b"last-generated-id")
                if last is None or _milliseconds(last) / 1000 >= before:
                    session.call("UNWATCH")
                    return False
            doomed = [keys.log(namespace), keys.manifest(namespace), keys.segments(namespace)]
            removal: list[Command] = [
                ("UNLINK", *doomed, *(keys.segment(namespace, name) for name in segments)),
                ("SREM", keys.names, namespace),
            ]
            try:
                answers = session.transaction(
                    [*removal, ("XADD", keys.news, "MAXLEN", NEWS_LENGTH, "*", "r", namespace)]
                )
            except Exception as error:
                if not is_full(error):
                    raise
                # The removal makes room. While the server is full nobody appends, and readers need the news only if the
                # clock is set back.
                answers = session.batch(removal)
            return None if answers is None else whole(answers)[0] > 0

        return self._watched(work)

    def trim(self, namespace: str, *, max_bytes: int | None = None, before: float | None = None) -> int:
        check_namespace(namespace)
        key, removed = self._keys.log(namespace), 0
        if before is not None and before > 0:
            removed += self._call("XTRIM", key, "MINID", f"{math.ceil(before * 1000)}-0")
        # Entries differ in size, so trimming by number removes only about the wanted bytes: repeat.
        for _ in range(_TRIES if max_bytes is not None else 0):
            assert max_bytes is not None
            count, used = self._nodes.run(
                key, lambda session: whole(session.batch([("XLEN", key), ("MEMORY", "USAGE", key, "SAMPLES", 32)]))
            )
            if not count or used <= max_bytes:
                break
            removed += self._call("XTRIM", key, "MAXLEN", int(count * max_bytes / used))
        return removed

    def manifest(self, namespace: str) -> bytes | None:
        check_tenant(namespace)
        found: bytes | None = self._call("GET", self._keys.manifest(namespace))
        return found

    def segment(self, namespace: str, name: str) -> Iterator[bytes]:
        check_tenant(namespace)
        key = self._keys.segment(namespace, name)
        writer, count = self._call("HMGET", key, "w", "n")
        if count is None or not count.isdigit():
            raise missing_segment(namespace, name)
        return self._chunks(namespace, name, writer, int(count))

    def _chunks(self, namespace: str, name: str, writer: bytes, num_chunks: int) -> Iterator[bytes]:
        key = self._keys.segment(namespace, name)
        for number in range(num_chunks):
            by, chunk = self._call("HMGET", key, "w", number)
            # Chunks of two writers do not form a segment.
            if by != writer or chunk is None:
                raise missing_segment(namespace, name)
            yield chunk

    def write_segment(self, namespace: str, name: str, chunks: Iterable[bytes]) -> None:
        check_tenant(namespace)
        keys, token = self._keys, secrets.token_hex(8)
        key, expire = keys.writing(namespace, name, token), int(UNFINISHED_SECONDS)
        self._transaction([("HSET", key, "w", token), ("EXPIRE", key, expire)])
        try:
            count, num_bytes = 0, 0
            for chunk in chunks:
                self._transaction([("HSET", key, count, chunk), ("EXPIRE", key, expire)])
                count, num_bytes = count + 1, num_bytes + len(chunk)
            # If the key expired meanwhile, this command creates it anew, without the writer's field.
            self._transaction([("HSET", key, "n", count), ("EXPIRE", key, expire)])
            (writer,) = self._call("HMGET", key, "w")
            if writer is None:
                raise StoreUnavailableError(f"a segment expired while it was written to {self.url}")
            self._transaction(
                [
                    ("RENAME", key, keys.segment(namespace, name)),
                    ("PERSIST", keys.segment(namespace, name)),
                    ("HSET", keys.segments(namespace), name, num_bytes),
                    ("SADD", keys.names, namespace),
                ]
            )
        except BaseException:
            try:
                self._call("UNLINK", key)
            except StoreError:
                # The key expires by itself.
                pass
            raise

    def write_manifest(self, namespace: str, manifest: bytes, segments: Collection[str]) -> None:
        check_tenant(namespace)
        keys = self._keys

        def work(session: Session) -> bool | None:
            held = self._watch_segments(session, namespace)
            for name in segments:
                if name not in held:
                    raise missing_segment(namespace, name)
            doomed = [name for name in held if name not in segments]
            commands: list[Command] = [
                ("SET", keys.manifest(namespace), manifest),
                ("SADD", keys.names, namespace),
            ]
            if doomed:
                commands.append(("HDEL", keys.segments(namespace), *doomed))
                commands.append(("UNLINK", *(keys.segment(namespace, name) for name in doomed)))
            answers = session.transaction(commands)
            return None if answers is None else bool(whole(answers))

        self._watched(work)

    def lease(self, owner: str, seconds: float) -> bool:
        key, value = self._keys.lease, _LEASE + owner.encode()

        def work(session: Session) -> bool | None:
            session.call("WATCH", key)
            # A foreign value is overwritten: it does not expire, and maintenance would stop for good.
            (holder,) = passable(session.batch([("GET", key)]))
            if holder is not None and holder.startswith(_LEASE) and holder != value:
                session.call("UNWATCH")
                return False
            milliseconds = max(1, int(seconds * 1000))
            change: Command = ("SET", key, value, "PX", milliseconds) if seconds > 0 else ("UNLINK", key)
            try:
                answers = session.transaction([change])
            except Exception as error:
                if not is_full(error):
                    raise
                # A full server needs maintenance most. Whoever has the lease keeps it. If nobody has, it cannot be taken
                # until there is room; all trim meanwhile, which does no harm, and none can write snapshots.
                if holder != value:
                    return seconds > 0
                change = ("EXPIRE", key, -(-milliseconds // 1000)) if seconds > 0 else change
                return bool(session.call(*change)) and seconds > 0
            return None if answers is None else bool(whole(answers)) and seconds > 0

        return self._watched(work)

    def compact(self) -> None:
        """Does nothing, because Redis frees removed data by itself."""
        if self._closed:
            raise closed(self.url)

    def info(self) -> StoreInfo:
        facts = self._nodes.run(self._keys.epoch, server_facts)
        return StoreInfo(
            kind="redis",
            server=product(facts),
            used_bytes=int(facts.get("used_memory", 0)),
            limit_bytes=int(facts.get("maxmemory", 0)),
            time=int(facts.get("server_time_usec", 0)) / 1e6 or time.time(),
        )

    def close(self) -> None:
        self._closed = True
        self._nodes.close()

    def _watch_segments(self, session: Session, namespace: str) -> list[str]:
        session.call("WATCH", self._keys.segments(namespace))
        return [name.decode(errors="replace") for name in session.call("HKEYS", self._keys.segments(namespace))]

    def _watched(self, work: Any) -> bool:
        """Runs `work` and returns its result; runs it again while it returns None because a watched key changed."""
        for _ in range(_TRIES):
            done: bool | None = self._nodes.run(self._keys.epoch, work)
            if done is not None:
                return done
        raise StoreUnavailableError(f"others keep changing the same keys of {self.url}; try again")


def server_facts(session: Session) -> dict[str, str]:
    """The fields that INFO reports."""
    lines = session.call("INFO").decode(errors="replace").splitlines()
    return {name: value for name, _, value in (line.partition(":") for line in lines) if value}


def product(facts: Mapping[str, str]) -> str:
    """The name and version of a server."""
    if "valkey_version" in facts:
        return f"Valkey {facts['valkey_version']}"
    return f"Redis {facts.get('redis_version', 'of unknown version')}"


def _described(stream: list[Any] | None) -> dict[bytes, Any]:
    """The fields that XINFO STREAM reports."""
    return dict(zip(stream[::2], stream[1::2], strict=True)) if stream else {}


def _milliseconds(position: bytes) -> int:
    return int(position.partition(b"-")[0])
