"""Parses the URL of a Redis store."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from agentspec.errors import ConfigError

Kind = Literal["server", "unix", "sentinel", "cluster"]

_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """A server, a socket, the sentinels of a service, or nodes of a cluster. Its repr shows no password."""

    url: str
    """The URL without user, password and options."""
    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    """Path of the Unix socket."""
    service: str = ""
    """Name of the service that the sentinels watch."""
    db: int = 0
    tls: bool = False
    files: tuple[tuple[str, str], ...] = ()
    """(option, file) for each of ssl_ca_certs, ssl_certfile and ssl_keyfile that is given."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)


def parse(scheme: str, rest: str, password: str | None = None) -> RedisAddress:
    """Parses SCHEME://REST. `password`, if given, replaces the one in the URL. Raises ConfigError."""
    product, _, kind_name = scheme.partition("-")
    tls = product in ("rediss", "valkeys")
    kind: Kind = "unix" if product == "unix" else _KINDS[kind_name]
    body, _, query = rest.partition("?")
    # A password may contain an unescaped @, so the last @ ends it.
    user, _, place = body.rpartition("@")
    username, colon, secret = user.partition(":")
    options = _options(query, kind, tls)
    hosts, path = ((), place) if kind == "unix" else _hosts(scheme, place, 26379 if kind == "sentinel" else 6379)
    if kind == "unix" and not path.startswith("/"):
        raise ConfigError(f"a socket's URL must be unix:///PATH, got unix://{path}")
    service = unquote(path.strip("/")) if kind == "sentinel" else ""
    if kind == "sentinel" and not service:
        raise ConfigError(f"a URL of sentinels must end in /SERVICE, got {scheme}://{place}")
    number = options.get("db", path.strip("/") if kind == "server" else "") or "0"
    if not (number.isascii() and number.isdecimal()):
        raise ConfigError(f"a Redis database must be a number, got {number!r}")
    if kind == "cluster" and (path.strip("/") or number != "0"):
        raise ConfigError("a Redis cluster has one database, 0: leave the path and db out")
    return RedisAddress(
        url=f"{scheme}://{place}",
        kind=kind,
        hosts=hosts,
        path=unquote(path) if kind == "unix" else "",
        service=service,
        db=int(number),
        tls=tls,
        files=tuple((name, options[name]) for name in _TLS_OPTIONS if name in options),
        username=unquote(username) or None,
        password=password if password is not None else unquote(secret) if colon else None,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
    )


_KINDS: dict[str, Kind] = {"": "server", "sentinel": "sentinel", "cluster": "cluster"}


def _options(query: str, kind: Kind, tls: bool) -> dict[str, str]:
    known = ("db", *(_TLS_OPTIONS if tls else ()), *(_SENTINEL_OPTIONS if kind == "sentinel" else ()))
    options: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        if name not in known or not equals:
            more = "" if tls else f" (and with rediss:// or another with TLS {', '.join(_TLS_OPTIONS)})"
            raise ConfigError(f"this store's URL may have the options {', '.join(known)}{more}, got {name!r}")
        options[name] = unquote(value)
        if name in _TLS_OPTIONS and not Path(options[name]).is_file():
            raise ConfigError(f"{name} must name a file, and there is none at {options[name]}")
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise ConfigError("ssl_keyfile must come with its certificate; name that in ssl_certfile")
    return options


def _hosts(scheme: str, place: str, default_port: int) -> tuple[tuple[tuple[str, int], ...], str]:
    names, _, path = place.partition("/")
    hosts = []
    for name in names.split(","):
        host, bracket, port = name[1:].partition("]") if name.startswith("[") else name.partition(":")
        port = port.removeprefix(":") if bracket == "]" else port
        if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536) and port != "":
            raise ConfigError(f"a port must be in [1, 65535], got {port!r} in {scheme}://{place}")
        hosts.append((host or "localhost", int(port or default_port)))
    if len(hosts) > 1 and "-" not in scheme:
        raise ConfigError(f"{scheme}:// takes one host; give several to {scheme}-sentinel:// or {scheme}-cluster://")
    return tuple(hosts), path
