"""Opens a store by its URL."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from agentspec.errors import ConfigError
from agentspec.store.base import Scope, Store

DEFAULT_URL = "sqlite://"
"""A file in the user's data directory."""

NOTHING_URL = "memory://"
"""What a server is given in place of a store if it should keep nothing."""

DEFAULT_TIMEOUT = 5.0
"""Seconds that a call may wait for an answer of the store. A connection must be made within 2 seconds, or within this
time if it is shorter."""


class Place(Protocol):
    """The place that a URL names, and the scopes stored there."""

    url: str
    """Without passwords."""

    def open(self, scope: Scope, *, create: bool = True) -> Store:
        """As open_store()."""

    def scopes(self) -> list[Scope]:
        """The scopes that are stored there; [] if there is no file. Raises as open_store() does."""

    def delete_scope(self, scope: Scope) -> bool:
        """Removes a scope permanently; returns False if nothing was stored of it. Raises as open_store() does."""


def open_store(
    url: str, scope: Scope, *, password: str | None = None, timeout: float = DEFAULT_TIMEOUT, create: bool = True
) -> Store:
    """Opens a store for a scope. Tries the store out, so that faults show now rather than later.

        sqlite://                  a file; store.sqlite3 in $XDG_DATA_HOME/agentspec or ~/.local/share/agentspec
        sqlite:///PATH             a relative path; sqlite:////PATH an absolute one
        redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]
        unix://[USER[:PASSWORD]@]/PATH[?db=DB]
        redis-sentinel://[USER[:PASSWORD]@]HOST:PORT,.../SERVICE[?db=DB]
        redis-cluster://[USER[:PASSWORD]@]HOST:PORT,...
        rediss://, rediss-sentinel://, rediss-cluster://
                                   the same over TLS; ?ssl_ca_certs=FILE&ssl_certfile=FILE&ssl_keyfile=FILE
        valkey://, valkeys://, ... as redis://, rediss://, ...

    Args:
        password: The server's password; replaces one in the URL.
        timeout: Seconds that a call may wait for an answer.
        create: Whether to create the file and to enter the scope's model. Otherwise the store must know the model.

    Raises:
        ConfigError: The URL is invalid, or a package or file that it needs is missing.
        StoreUnavailableError: The store does not answer, or accepts no data at this time.
        StoreError: The store answers with an error, does not keep its data, lacks a permission, holds other data under
            agentspec's keys, or has the model with another tokenizer.
    """
    return place(url, password=password, timeout=timeout).open(scope, create=create)


def place(url: str, *, password: str | None = None, timeout: float = DEFAULT_TIMEOUT) -> Place:
    """The place that a URL names; opens nothing. Raises ConfigError."""
    if not timeout > 0:
        raise ConfigError(f"a store's timeout must be > 0 seconds, got {timeout}")
    scheme, separator, rest = url.partition("://")
    make = _PLACES.get(scheme)
    if not separator or make is None:
        known = ", ".join(f"{name}://" for name in _PLACES)
        raise ConfigError(f"the store {redact(url)!r} must be a URL that begins with one of {known}")
    return make(scheme, rest, password, timeout)


def is_file(url: str) -> bool:
    """Whether the store is a file, which needs no password."""
    return url.partition("://")[0] == "sqlite"


def redact(url: str) -> str:
    """A URL as it may be shown: without passwords, whatever is wrong with it."""
    if is_file(url):
        return url
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    # A password may hold any character by mistake, so the last @ ends it.
    user, at, host = rest.rpartition("@")
    shown = f"{user.partition(':')[0]}:***@{host}" if ":" in user else f"{user}{at}{host}"
    return scheme + separator + re.sub(r"(password=)[^&]*", r"\1***", shown, flags=re.IGNORECASE)


def default_path() -> Path:
    """The file of `sqlite://`. Raises ConfigError if the user has no home, as an arbitrary user of a container has none."""
    home = os.environ.get("XDG_DATA_HOME", "")
    try:
        folder = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share"
    except RuntimeError:
        raise ConfigError(
            f"the default store {DEFAULT_URL} has no folder, because this user has no home; set HOME or XDG_DATA_HOME, or "
            "name a store, such as sqlite:////PATH"
        ) from None
    return folder / "agentspec" / "store.sqlite3"


def _sqlite(scheme: str, rest: str, password: str | None, timeout: float) -> Place:
    from agentspec.store.sqlite.store import SqlitePlace

    if rest and not rest.startswith("/"):
        raise ConfigError(
            f"an SQLite store must be sqlite:///PATH, or sqlite:////PATH for an absolute path, got 'sqlite://{rest}'"
        )
    path = unquote(rest[1:])
    if rest and (not path or path.endswith("/") or "\0" in path):
        raise ConfigError(f"an SQLite store must name a file, got 'sqlite://{rest}'")
    if not path:
        return SqlitePlace(default_path(), timeout=timeout, make_folder=True)
    return SqlitePlace(Path(path), timeout=timeout)


def _redis(scheme: str, rest: str, password: str | None, timeout: float) -> Place:
    from agentspec.store.redis.address import parse
    from agentspec.store.redis.place import RedisPlace

    return RedisPlace(parse(scheme, rest, password), timeout=timeout)


_REDIS_SCHEMES = tuple(
    f"{product}{tls}{kind}"
    for product in ("redis", "valkey")
    for kind in ("", "-sentinel", "-cluster")
    for tls in ("", "s")
)
_PLACES: dict[str, Callable[[str, str, str | None, float], Place]] = {
    "sqlite": _sqlite,
    "unix": _redis,
    **dict.fromkeys(_REDIS_SCHEMES, _redis),
}
