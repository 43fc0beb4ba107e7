"""The permissions that agentspec needs of a Redis user."""

from __future__ import annotations

from agentspec.errors import ConfigError
from agentspec.store.base import Scope
from agentspec.store.redis.keys import MODELS, PREFIX, RedisKeys

COMMANDS = (
    "expire", "get", "hdel", "hgetall", "hkeys", "hmget", "hset", "hsetnx", "hvals", "info", "memory|usage", "multi", "exec",
    "persist", "rename", "sadd", "set", "smembers", "srem", "strlen", "type", "unlink", "unwatch", "watch",
    "xadd", "xdel", "xinfo|stream", "xlen", "xrange", "xread", "xrevrange", "xtrim",
)  # fmt: skip
"""All commands that a store and its readers use."""

CLUSTER_COMMANDS = ("cluster|slots",)
"""Needed in addition for redis-cluster:// URLs."""

DATABASE_COMMANDS = ("select",)
"""Needed in addition where the URL names a database other than 0."""


def acl_rules(user: str, scope: Scope | None = None, *, cluster: bool = False, database: bool = False) -> str:
    """The command that gives a Redis user exactly the rights that agentspec needs, without a password.

    Append >PASSWORD or #SHA256 and run it at the server, or put it into the ACL file without the leading ACL SETUSER.
    Raises ConfigError if the name is empty or contains a blank or a null character.

    Args:
        scope: The only scope that the user may use; None allows all scopes.
        cluster: For redis-cluster://.
        database: For a database other than 0.
    """
    if not user or any(character.isspace() or character == "\0" for character in user):
        raise ConfigError(f"a Redis user's name must have no blanks and not be empty, got {user!r}")
    keys = (f"~{PREFIX}*",) if scope is None else (f"~{RedisKeys(scope).prefix}*", f"~{MODELS}")
    commands = COMMANDS + (CLUSTER_COMMANDS if cluster else ()) + (DATABASE_COMMANDS if database else ())
    words = (
        "ACL SETUSER",
        user,
        "on",
        "resetkeys",
        "resetchannels",
        *keys,
        "-@all",
        *(f"+{each}" for each in commands),
    )
    return " ".join(words)
