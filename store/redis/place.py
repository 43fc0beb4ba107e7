"""Opens a Redis store, and lists and deletes its scopes."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import Any

from agentspec.errors import StoreError
from agentspec.store.base import Scope
from agentspec.store.redis.address import RedisAddress
from agentspec.store.redis.keys import MODELS, RedisKeys
from agentspec.store.redis.nodes import Command, RedisNodes, Session, passable, require_redis, whole
from agentspec.store.redis.reader import namespaces_of
from agentspec.store.redis.store import RedisStore, product, server_facts
from agentspec.store.rules import check_model

_MIN_VERSION = (6, 2)
_BATCH = 256


class RedisPlace:
    """The `Place` of a Redis or Valkey URL."""

    def __init__(self, address: RedisAddress, *, timeout: float) -> None:
        require_redis()
        self.url = address.url
        self._address = address
        self._timeout = timeout

    def open(self, scope: Scope, *, create: bool = True) -> RedisStore:
        """As open_store(). With `create`, tries every command on temporary keys first."""
        nodes = RedisNodes(self._address, self._timeout)
        keys = RedisKeys(scope)
        try:
            nodes.run(keys.epoch, lambda session: self._check_server(server_facts(session)))
            nodes.run(keys.epoch, lambda session: self._check_types(session, keys.types()))
            nodes.run(MODELS, lambda session: self._check_types(session, {MODELS: "hash"}))
            nodes.run(MODELS, lambda session: self._check_model(session, scope, create))
            if create:
                nodes.run(keys.epoch, lambda session: _probe(session, keys))
                nodes.run(MODELS, lambda session: session.call("HSETNX", MODELS, scope.model, scope.tokenizer))
                # Another replica may have entered the model first.
                nodes.run(MODELS, lambda session: self._check_model(session, scope, create))
                nodes.run(keys.epoch, lambda session: session.call("SET", keys.epoch, secrets.token_hex(8), "NX"))
        except BaseException:
            nodes.close()
            raise
        return RedisStore(nodes, scope, self._address, self._timeout)

    def scopes(self) -> list[Scope]:
        with closing(RedisNodes(self._address, self._timeout)) as nodes:
            return [Scope(*pair) for pair in nodes.run(MODELS, _models).items()]

    def delete_scope(self, scope: Scope) -> bool:
        keys = RedisKeys(scope)
        with closing(RedisNodes(self._address, self._timeout)) as nodes:
            known = nodes.run(MODELS, _models).get(scope.model) == scope.tokenizer
            if known:
                nodes.run(MODELS, lambda session: session.call("HDEL", MODELS, scope.model))
            removed = nodes.run(keys.epoch, lambda session: _delete(session, keys))
            return known or removed

    def _check_server(self, facts: dict[str, str]) -> None:
        version = tuple(int(part) for part in facts.get("redis_version", "0.0").split(".")[:2])
        if version < _MIN_VERSION:
            raise StoreError(f"the store {self.url} must be Redis 6.2 or later, or Valkey, got {product(facts)}")
        policy = facts.get("maxmemory_policy", "noeviction")
        if int(facts.get("maxmemory", 0)) and policy.startswith("allkeys"):
            raise StoreError(
                f"the store {self.url} evicts keys when it is full (maxmemory-policy {policy}): set the policy "
                "noeviction, or volatile-ttl, which spares what agentspec keeps"
            )

    def _check_types(self, session: Session, types: dict[str, str]) -> None:
        for key, wanted in types.items():
            found = session.call("TYPE", key).decode()
            if found not in ("none", wanted):
                raise StoreError(
                    f"the store {self.url} has a {found} under the key {key}, where agentspec keeps a {wanted}: remove "
                    "that key, or use another database"
                )

    def _check_model(self, session: Session, scope: Scope, create: bool) -> None:
        models = _models(session)
        check_model(self.url, scope, models.get(scope.model), list(models), create=create)


def _models(session: Session) -> dict[str, str]:
    pairs: list[Any] = session.call("HGETALL", MODELS)
    texts = [each.decode(errors="replace") for each in pairs]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _probe(session: Session, keys: RedisKeys) -> None:
    """Uses every command, so that a missing permission is found now; leaves no keys behind."""
    stream, table, names, text = (keys.probe(secrets.token_hex(8)) for _ in range(4))
    session.call("WATCH", text)
    session.call("UNWATCH")
    session.call("XREAD", "COUNT", 1, "STREAMS", stream, "0")
    commands: list[Command] = [
        ("SET", text, "", "PX", 1000),
        ("GET", text),
        ("STRLEN", text),
        ("XADD", stream, "MAXLEN", 1, "*", "d", ""),
        ("EXPIRE", stream, 1),
        ("XLEN", stream),
        ("XRANGE", stream, "-", "+"),
        ("XREVRANGE", stream, "+", "-"),
        ("XINFO", "STREAM", stream),
        ("MEMORY", "USAGE", stream),
        ("XDEL", stream, "1-0"),
        ("XTRIM", stream, "MINID", "0"),
        ("SADD", names, "x", "y"),
        ("EXPIRE", names, 1),
        ("SMEMBERS", names),
        ("SREM", names, "x"),
        ("HSET", table, "0", ""),
        ("HSETNX", table, "0", ""),
        ("HMGET", table, "0"),
        ("HKEYS", table),
        ("HVALS", table),
        ("HGETALL", table),
        ("HDEL", table, "1"),
        ("PERSIST", table),
        ("EXPIRE", table, 1),
        ("RENAME", names, text),
        ("UNLINK", stream, table, text),
    ]
    answers = session.transaction(commands)
    assert answers is not None
    whole(answers)


def _delete(session: Session, keys: RedisKeys) -> bool:
    """Removes all keys of a scope. Keys that a live replica writes meanwhile expire or start a new log."""
    removed: int = 0
    names = namespaces_of(session.call("SMEMBERS", keys.names))
    for start in range(0, len(names), _BATCH):
        part = names[start : start + _BATCH]
        segments = passable(session.batch([("HKEYS", keys.segments(name)) for name in part]))
        doomed = [key for name in part for key in (keys.log(name), keys.manifest(name), keys.segments(name))]
        for name, held in zip(part, segments, strict=True):
            doomed += [keys.segment(name, segment.decode(errors="replace")) for segment in held or ()]
        removed += session.call("UNLINK", *doomed)
    removed += session.call("UNLINK", keys.epoch, keys.lease, keys.names, keys.news, keys.control)
    return removed > 0
