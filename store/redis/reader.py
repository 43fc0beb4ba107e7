"""Follows the logs of one scope in Redis."""

from __future__ import annotations

import re
import secrets
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from agentspec.errors import StoreError, StoreResetError
from agentspec.store.base import CONTROL, Entry, Scope
from agentspec.store.redis.keys import MODELS, NEWS_LENGTH, RedisKeys
from agentspec.store.redis.nodes import Command, RedisNodes, Session, passable, whole
from agentspec.store.rules import BROKEN_SECONDS, is_namespace

START = "0-0"
# The last possible id: nothing can be appended or requested after it.
LAST = f"{2**64 - 1}-{2**64 - 1}"
_MAX_LOGS = 256
# Mean size of an entry that is assumed until entries have been read.
_GUESSED_BYTES = 16 << 10


class RedisReader:
    """A `Reader` of a Redis store, with a connection of its own.

    Blocks on the news stream alone, then reads the logs that grew, so that idle namespaces cost nothing. Each step is
    one transaction, so that the epoch, the news and the logs are consistent. A full server refuses transactions;
    entries may then come twice if the store loses its contents during a step.

    1. If the epoch changed, or the news end before those read last, the contents were replaced: start again.
    2. If the news begin after those read last, some were missed: continue reading all logs.
    3. Otherwise read the logs that the news name.
    """

    def __init__(self, nodes: RedisNodes, scope: Scope, positions: dict[str, str], timeout: float) -> None:
        self.broken: dict[str, str] = {}
        self._nodes = nodes
        self._scope = scope
        self._keys = RedisKeys(scope)
        # A blocking read must end before the connection's time-out.
        self._block = min(1.0, timeout / 2)
        self._closed = False
        self._begin(positions)

    def _begin(self, positions: dict[str, str]) -> None:
        self._positions = positions
        self._epoch: bytes | None = None
        # Id of the last news entry that was read; None before the first.
        self._news: str | None = None
        # Logs that may have more entries, in the order in which they are read.
        self._growing: dict[str, None] = {}
        # Entries that were read but not yet returned.
        self._ready: deque[Entry] = deque()
        self._mean_bytes = float(_GUESSED_BYTES)
        self._retry_at = 0.0
        self.broken.clear()

    def read(self, wait: float, max_bytes: int = 8 << 20) -> list[Entry]:
        deadline = time.monotonic() + wait
        while True:
            if self._closed:
                raise StoreError(f"the reader of {self._nodes.url} was closed; make another")
            if not self._ready:
                self._nodes.run(self._keys.epoch, lambda session: self._step(session, max_bytes))
            if self._ready:
                return self._take(max_bytes)
            left = deadline - time.monotonic()
            if self._growing:
                continue
            if left <= 0:
                return []
            is_news = self._nodes.run(self._keys.epoch, lambda session, left=left: self._wait(session, left))  # type: ignore[misc]
            if not is_news and time.monotonic() >= deadline:
                # The next call looks for the rest, so that an idle reader takes one step for each wait.
                return []

    def close(self) -> None:
        self._closed = True
        self._nodes.close()

    def _take(self, max_bytes: int) -> list[Entry]:
        taken = [self._ready.popleft()]
        max_bytes -= len(taken[0].data)
        while self._ready and len(self._ready[0].data) <= max_bytes:
            taken.append(self._ready.popleft())
            max_bytes -= len(taken[-1].data)
        return taken

    def _wait(self, session: Session, seconds: float) -> bool:
        milliseconds = max(1, int(min(seconds, self._block) * 1000))
        news = session.call("XREAD", "COUNT", 1, "BLOCK", milliseconds, "STREAMS", self._keys.news, self._news)
        return news is not None

    def _step(self, session: Session, max_bytes: int) -> None:
        if self._news is None:
            self._start(session)
        if self.broken and time.monotonic() >= self._retry_at:
            self._growing.update(dict.fromkeys(self.broken))
            self._retry_at = time.monotonic() + BROKEN_SECONDS
        logs = list(self._growing)[: max(1, min(_MAX_LOGS, int(max_bytes / self._mean_bytes)))]
        count = max(1, int(max_bytes / self._mean_bytes / max(1, len(logs))))
        commands: list[Command] = [
            ("GET", self._keys.epoch),
            ("XRANGE", self._keys.news, self._news, "+"),
            ("XRANGE", self._keys.news, "-", "+", "COUNT", 1),
        ]
        for namespace in logs:
            after = "(" + self._positions.get(namespace, START)
            commands.append(("XRANGE", self._keys.log(namespace), after, "+", "COUNT", count))
        answers = session.read(commands)
        epoch, news, oldest = whole(answers[:3])
        if epoch != self._epoch:
            raise self._reset("lost its contents")
        removed = self._follow(session, news, oldest)
        for namespace, entries in zip(logs, answers[3:], strict=True):
            if namespace not in removed:
                self._accept(namespace, entries, count)

    def _start(self, session: Session) -> None:
        if session.call("GET", self._keys.epoch) is None:
            # Written only if missing, because a full or read-only server can still be followed. Whoever writes the epoch
            # enters the model, which was lost with it.
            enter: Command = ("HSETNX", MODELS, self._scope.model, self._scope.tokenizer)
            self._nodes.run(MODELS, lambda other: passable(other.batch([enter])))
            session.call("SET", self._keys.epoch, secrets.token_hex(8), "NX")
        answers = session.read(
            [
                ("GET", self._keys.epoch),
                ("XREVRANGE", self._keys.news, "+", "-", "COUNT", 1),
                ("SMEMBERS", self._keys.names),
            ]
        )
        self._epoch, last, names = whole(answers)
        self._news = last[0][0].decode() if last else START
        self._growing = dict.fromkeys([CONTROL, *namespaces_of(names)])

    def _reset(self, how: str) -> StoreResetError:
        self._begin({})
        return StoreResetError(f"the store {self._nodes.url} {how}; reading goes on from the beginning")

    def _follow(self, session: Session, news: list[Any], oldest: list[Any]) -> set[str]:
        """Applies the news, which begin with the entry read last; returns the namespaces that were removed."""
        removed: set[str] = set()
        assert self._news is not None
        if self._news == START:
            missed = len(news) >= NEWS_LENGTH
        elif news and news[0][0].decode() == self._news:
            missed = False
            news = news[1:]
        elif oldest and _order(oldest[0][0].decode()) > _order(self._news):
            missed = True
        else:
            raise self._reset("was replaced by an older copy")
        for _, (what, *about) in news:
            for name in namespaces_of(about):
                if what == b"r":
                    # New entries may have smaller positions if the server's clock was set back.
                    removed.add(name)
                    self._positions.pop(name, None)
                self._growing[name] = None
        if missed:
            names = namespaces_of(session.call("SMEMBERS", self._keys.names))
            # Deletions come first, so that outputs which were delivered after their deletion are recognised.
            self._growing = dict.fromkeys([CONTROL, *self._growing, *names])
        if news:
            self._news = news[-1][0].decode()
        return removed

    def _accept(self, namespace: str, rows: Any, count: int) -> None:
        broken = ""
        if isinstance(rows, Exception):
            # A log that appears there later is a new one.
            self._positions.pop(namespace, None)
            broken, rows = str(rows), []
        elif rows and rows[-1][0].decode() == LAST:
            broken, rows = "its last entry has the last id", rows[:-1]
        if broken:
            if not self.broken:
                self._retry_at = time.monotonic() + BROKEN_SECONDS
            self.broken[namespace] = broken
        else:
            self.broken.pop(namespace, None)
        entries = entries_of(namespace, rows)
        self._ready.extend(entries)
        if rows:
            self._positions[namespace] = rows[-1][0].decode()
            mean = sum(len(entry.data) for entry in entries) / len(rows)
            self._mean_bytes = max(64.0, mean, 0.75 * self._mean_bytes + 0.25 * mean)
        # A log that has more entries goes to the end of the queue.
        del self._growing[namespace]
        if len(rows) >= count:
            self._growing[namespace] = None


def entries_of(namespace: str, rows: list[Any]) -> list[Entry]:
    """The entries of a stream's rows. A row without the field d is foreign: its data is passed on and is no record."""
    return [
        Entry(namespace, position.decode(), fields[1] if fields and fields[0] == b"d" else b"".join(fields or ()))
        for position, fields in rows
    ]


def namespaces_of(names: Iterable[bytes]) -> list[str]:
    """The names that are namespaces or CONTROL."""
    return [name for name in (each.decode(errors="replace") for each in names) if is_namespace(name)]


def check_position(position: str) -> str:
    """Returns the position; raises StoreError if it is not a position of a Redis store."""
    if re.fullmatch(r"[0-9]{1,20}-[0-9]{1,20}", position) is None:
        raise StoreError(
            f"a position of a Redis store is a stream's id, such as 1700000000000-0, got {position[:40]!r}"
        )
    return position


def _order(position: str) -> tuple[int, int]:
    first, _, second = position.partition("-")
    return int(first), int(second)
