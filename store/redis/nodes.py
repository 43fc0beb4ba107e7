"""Connections to the Redis server or cluster node that holds a store's keys.

Only the connection classes of redis-py are used, for the protocol, TLS and log-in. Its clients retry on their own,
which would hide from callers how long a call takes and whether a command ran.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from agentspec.errors import ConfigError, StoreError, StoreUnavailableError
from agentspec.store.redis.address import RedisAddress
from agentspec.store.redis.errors import store_error
from agentspec.store.rules import closed

CONNECT_SECONDS = 2.0
_MAX_IDLE = 4

Command = tuple[Any, ...]
_T = TypeVar("_T")


class Session:
    """One connection, for one thread at a time. Raises redis-py's errors."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def call(self, *command: Any) -> Any:
        """The answer to one command."""
        (answer,) = self.batch([command])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def batch(self, commands: Sequence[Command]) -> list[Any]:
        """Sends commands together and returns their answers; error answers are returned, not raised."""
        import redis

        self.connection.send_packed_command(self.connection.pack_commands(commands))
        answers: list[Any] = []
        for _ in commands:
            try:
                answers.append(self.connection.read_response())
            except redis.ResponseError as error:
                answers.append(error)
        return _named(answers, commands)

    def transaction(self, commands: Sequence[Command]) -> list[Any] | None:
        """Runs commands in MULTI/EXEC and returns their answers; None, with nothing done, if a watched key has changed.

        Errors of commands during EXEC are among the answers. If the server refuses a command before EXEC, nothing is
        done and its error is raised.
        """
        *queued, answers = self.batch([("MULTI",), *commands, ("EXEC",)])
        for answer in (*queued, answers):
            if isinstance(answer, Exception):
                raise answer
        return None if answers is None else _named(answers, commands)

    def read(self, commands: Sequence[Command]) -> list[Any]:
        """Runs read-only commands as one transaction and returns their answers, errors included.

        A full server refuses transactions. The commands are then sent as a plain batch, and data may change between
        them.
        """
        try:
            answers = self.transaction(commands)
        except Exception as error:
            if not is_full(error):
                raise
            return self.batch(commands)
        assert answers is not None
        return answers


class RedisNodes:
    """The connections of a store or of a reader."""

    def __init__(self, address: RedisAddress, timeout: float) -> None:
        self.address = address
        self.url = address.url
        self._timeout = timeout
        self._lock = threading.Lock()
        # The node that owns each slot (slot 0 stands for the sentinels' master), and the idle connections of each node.
        self._owners: dict[int, tuple[str, int]] = {}
        self._idle: dict[tuple[str, int], list[Session]] = {}
        self._closed = False

    def run(self, key: str, work: Callable[[Session], _T]) -> _T:
        """Calls `work` with a connection to the node that holds `key` and returns its result.

        Follows at most two MOVED answers and retries nothing else. Errors of redis-py and of the system become
        StoreError.
        """
        import redis

        for attempt in range(3):
            node: tuple[str, int] | None = None
            session: Session | None = None
            try:
                node = self._node(key)
                session = self._take(node)
                result = work(session)
            except StoreError:
                if session is not None:
                    session.connection.disconnect()
                raise
            except Exception as error:
                if session is not None:
                    session.connection.disconnect()
                # In older releases of redis-py only the cluster client raises MovedError; connections do not.
                moved = isinstance(error, redis.exceptions.MovedError) or str(error).startswith("MOVED ")
                mapped = store_error(error, self.url, self.address.username, self._timeout)
                if moved or mapped is None or isinstance(mapped, StoreUnavailableError):
                    self._forget(node)
                # A node that answers MOVED has not run the command, so it is safe to send it again.
                if moved and attempt < 2:
                    continue
                if mapped is None:
                    raise
                # The cause may contain the data that was sent, so it is left out.
                raise mapped from None
            except BaseException:
                if session is not None:
                    session.connection.disconnect()
                raise
            self._give(node, session)
            return result
        raise AssertionError("unreachable")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            sessions = [session for idle in self._idle.values() for session in idle]
            self._idle.clear()
        for session in sessions:
            with suppress(Exception):
                session.connection.disconnect()

    def _node(self, key: str) -> tuple[str, int]:
        address = self.address
        if address.kind in ("server", "unix"):
            return address.hosts[0] if address.hosts else ("", 0)
        from redis.crc import key_slot

        slot = key_slot(key.encode()) if address.kind == "cluster" else 0
        with self._lock:
            owner = self._owners.get(slot)
        if owner is None:
            owner = self._slot_owner(slot) if address.kind == "cluster" else self._master()
            with self._lock:
                self._owners[slot] = owner
        return owner

    def _slot_owner(self, slot: int) -> tuple[str, int]:
        def find(session: Session, host: str) -> tuple[str, int] | None:
            for first, last, owner, *_ in session.call("CLUSTER", "SLOTS"):
                if first <= slot <= last:
                    return (owner[0].decode() if owner[0] else host, int(owner[1]))
            return None

        return self._ask_any(find, self.address.username, self.address.password, f"has the slot {slot}")

    def _master(self) -> tuple[str, int]:
        def find(session: Session, host: str) -> tuple[str, int] | None:
            found = session.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.address.service)
            return None if found is None else (found[0].decode(), int(found[1]))

        address = self.address
        return self._ask_any(
            find, address.sentinel_username, address.sentinel_password, f"knows the master of {address.service!r}"
        )

    def _ask_any(
        self,
        find: Callable[[Session, str], tuple[str, int] | None],
        username: str | None,
        password: str | None,
        what: str,
    ) -> tuple[str, int]:
        """Asks the nodes that the address names in turn and returns the first answer."""
        reasons: list[str] = []
        failed: StoreError | None = None
        for host, port in self.address.hosts:
            session = None
            try:
                session = self._connect((host, port), 0, username, password)
                found = find(session, host)
            except Exception as error:
                failed = store_error(error, f"{host}:{port}", username, self._timeout)
                if failed is None:
                    raise
                reasons.append(str(failed))
                continue
            finally:
                if session is not None:
                    session.connection.disconnect()
            if found is not None:
                return found
            reasons.append(f"{host}:{port} knows of none")
        text = f"none of the nodes of {self.url} {what}: {'; '.join(reasons)}"
        if failed is not None and not isinstance(failed, StoreUnavailableError):
            raise StoreError(text)
        raise StoreUnavailableError(text)

    def _take(self, node: tuple[str, int]) -> Session:
        while True:
            with self._lock:
                if self._closed:
                    raise closed(self.url)
                idle = self._idle.get(node)
                session = idle.pop() if idle else None
            if session is None:
                return self._connect(node, self.address.db, self.address.username, self.address.password)
            # An idle connection with something to read was closed by the server or is out of step.
            with suppress(Exception):
                if not session.connection.can_read(timeout=0):
                    return session
            with suppress(Exception):
                session.connection.disconnect()

    def _give(self, node: tuple[str, int], session: Session) -> None:
        with self._lock:
            idle = self._idle.setdefault(node, [])
            if not self._closed and len(idle) < _MAX_IDLE:
                idle.append(session)
                return
        with suppress(Exception):
            session.connection.disconnect()

    def _forget(self, node: tuple[str, int] | None) -> None:
        with self._lock:
            self._owners.clear()
            sessions = self._idle.pop(node, []) if node is not None else []
        for session in sessions:
            with suppress(Exception):
                session.connection.disconnect()

    def _connect(self, node: tuple[str, int], db: int, username: str | None, password: str | None) -> Session:
        import redis
        from redis.backoff import NoBackoff
        from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
        from redis.retry import Retry

        arguments: dict[str, Any] = {
            "db": db,
            "username": username,
            "password": password,
            "socket_timeout": self._timeout,
            "socket_connect_timeout": min(CONNECT_SECONDS, self._timeout),
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            **_anonymous(),
        }
        kind: Any
        if self.address.kind == "unix":
            kind = UnixDomainSocketConnection
            arguments["path"] = self.address.path
        else:
            kind = SSLConnection if self.address.tls else Connection
            arguments["host"], arguments["port"] = node
        if self.address.tls:
            arguments |= {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **dict(self.address.files)}
        connection = kind(**arguments)
        try:
            connection.connect()
        except BaseException as error:
            with suppress(Exception):
                connection.disconnect()
            if self.address.tls and isinstance(error, redis.TimeoutError):
                raise StoreUnavailableError(
                    f"the store {self.url} did not answer the TLS handshake within {self._timeout:g} s; "
                    "check that it uses TLS"
                ) from None
            raise
        return Session(connection)


def require_redis() -> None:
    """Raises ConfigError unless redis-py is installed."""
    try:
        import redis  # noqa: F401
    except ImportError:
        raise ConfigError("a Redis store needs the package redis: `pip install 'sglang-agentspec[redis]'`") from None


def whole(answers: list[Any]) -> list[Any]:
    """Returns the answers; raises the first error among them."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def passable(answers: list[Any]) -> list[Any]:
    """Returns the answers, with None for a missing key or a key of another type; raises the first other error."""
    return whole(
        [
            None if isinstance(answer, Exception) and str(answer).startswith(("WRONGTYPE", "no such key")) else answer
            for answer in answers
        ]
    )


def is_full(error: Exception) -> bool:
    """Whether the server refused a command because it is out of memory."""
    return type(error).__name__ == "OutOfMemoryError" or str(error).startswith("OOM ")


def _named(answers: list[Any], commands: Sequence[Command]) -> list[Any]:
    """Returns the answers; WRONGTYPE errors among them name the key."""
    for answer, command in zip(answers, commands, strict=True):
        if isinstance(answer, Exception) and str(answer).startswith("WRONGTYPE"):
            answer.args = (f"{answer} ({command[1]})",)
    return answers


def _anonymous() -> dict[str, None]:
    """Arguments that keep a connection from sending the library's name, which a user may not be allowed to do."""
    from redis.connection import AbstractConnection

    known = inspect.signature(AbstractConnection.__init__).parameters
    names = ("driver_info",) if "driver_info" in known else ("lib_name", "lib_version")
    return dict.fromkeys(name for name in names if name in known)
