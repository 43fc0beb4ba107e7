"""URLs of stores: their meaning, their errors, and how they are shown. Names of tenants' namespaces."""

from __future__ import annotations

import hashlib
import hmac
import sys

import pytest
from every import every
from programs import output_of
from store_case import SCOPE

import agentspec.store
from agentspec.errors import ConfigError
from agentspec.store import open_store, redact
from agentspec.store.namespaces import namespace_id
from agentspec.store.redis.address import RedisAddress, parse


def address(url: str, password: str | None = None) -> RedisAddress:
    scheme, _, rest = url.partition("://")
    return parse(scheme, rest, password)


@every(
    ("url", "wanted"),
    [
        ("redis://", {"kind": "server", "hosts": (("localhost", 6379),), "db": 0, "tls": False}),
        ("redis://host:1/2", {"hosts": (("host", 1),), "db": 2}),
        ("redis://host?db=3", {"hosts": (("host", 6379),), "db": 3}),
        ("redis://[::1]:7", {"hosts": (("::1", 7),)}),
        ("redis://user:p%40ss@host", {"username": "user", "password": "p@ss"}),
        ("redis://:p@s/s@host:1", {"username": None, "password": "p@s/s", "hosts": (("host", 1),)}),
        ("redis://user@host", {"username": "user", "password": None}),
        ("rediss://host", {"tls": True, "kind": "server"}),
        ("valkey://host", {"tls": False, "kind": "server"}),
        ("valkeys://host", {"tls": True}),
        ("unix:///run/a%20b.sock?db=1", {"kind": "unix", "path": "/run/a b.sock", "db": 1}),
        ("unix://user:pw@/run/s", {"path": "/run/s", "password": "pw"}),
        (
            "redis-sentinel://a:1,b/svc?db=4&sentinel_password=x%26",
            {
                "kind": "sentinel",
                "hosts": (("a", 1), ("b", 26379)),
                "service": "svc",
                "db": 4,
                "sentinel_password": "x&",
            },
        ),
        ("rediss-sentinel://a/svc", {"kind": "sentinel", "tls": True}),
        ("redis-cluster://a:1,b:2", {"kind": "cluster", "hosts": (("a", 1), ("b", 2))}),
        ("valkeys-cluster://a", {"kind": "cluster", "tls": True}),
    ],
)
def test_what_a_redis_url_says(url: str, wanted: dict[str, object]) -> None:
    found = address(url)
    assert {name: getattr(found, name) for name in wanted} == wanted


def test_a_password_beside_the_url_goes_before_the_one_in_it() -> None:
    assert address("redis://:one@host", "two").password == "two"


@every(
    ("url", "said"),
    [
        ("", r"must be a URL.*sqlite://"),
        ("/var/store", "must be a URL"),
        ("reddis://:pw-1@host", r"reddis://:\*\*\*@host.*redis://.*rediss-sentinel://.*valkey://"),
        ("http://host", "must be a URL"),
        ("redis://host:99999", "port must be in"),
        ("redis://host:x", "port must be in"),
        ("redis://host/x", "database must be a number"),
        ("redis://a,b", "redis-cluster"),
        ("redis://host?password=pw-1", "options db .*got 'password'"),
        ("redis://host?db", "options db"),
        ("redis-sentinel://host", "end in /SERVICE"),
        ("redis-cluster://host/1", "one database"),
        ("unix://relative", "unix:///PATH"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        open_store(url, SCOPE)
    assert "pw-1" not in str(caught.value)


def test_a_time_out_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="timeout"):
        open_store("sqlite://", SCOPE, timeout=0)


@every(
    ("url", "shown"),
    [
        ("sqlite:////folder/a@b:c", "sqlite:////folder/a@b:c"),
        ("redis://host/1", "redis://host/1"),
        ("redis://user@host", "redis://user@host"),
        ("redis://user:pw-1@host:1/2?db=3", "redis://user:***@host:1/2?db=3"),
        ("redis://:pw-1@more-of-pw-1@host", "redis://:***@host"),
        ("redis://:pw-1/?#@host", "redis://:***@host"),
        ("wrong:pw-1@host", "wrong:***@host"),
        ("redis-sentinel://h/s?sentinel_password=pw-1&db=1", "redis-sentinel://h/s?sentinel_password=***&db=1"),
        ("redis://host?PASSWORD=pw-1", "redis://host?PASSWORD=***"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert redact(url) == shown


def test_a_repr_shows_no_password() -> None:
    text = repr(address("redis-sentinel://u:pw-1@h/s?sentinel_password=pw-2"))
    assert "pw-1" not in text
    assert "pw-2" not in text


def test_public_names_are_there_and_redis_is_not_loaded() -> None:
    assert [name for name in agentspec.store.__all__ if not hasattr(agentspec.store, name)] == []
    program = (
        "import sys, agentspec.store as s; s.place('sqlite:////nowhere/store.sqlite3').scopes(); "
        "assert not {'redis', 'ssl'} & set(sys.modules), sorted(sys.modules)"
    )
    output_of(sys.executable, "-P", "-c", program)


KEY = bytes(range(32))


def test_a_namespace_is_a_digest_that_replicas_agree_on() -> None:
    name = b"agentspec namespace 1\0acme"
    assert namespace_id("acme", None) == hashlib.sha256(name).hexdigest()[:32]
    assert namespace_id("acme", KEY) == hmac.new(KEY, name, "sha256").hexdigest()[:32]


def test_tenants_keys_and_their_absence_are_told_apart() -> None:
    ids = {namespace_id(tenant, key) for tenant in ("", "a", "A", "a ", "\ud800") for key in (None, KEY, KEY[::-1])}
    assert len(ids) == 15
    assert all(len(name) == 32 and set(name) <= set("0123456789abcdef") for name in ids)
