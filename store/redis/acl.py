"""What a Redis user must be allowed for agentspec, and no more."""

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
"""Used besides where the URL is redis-cluster://."""

DATABASE_COMMANDS = ("select",)
"""Used besides where the URL names a database other than 0."""


def acl_rules(user: str, scope: Scope | None = None, *, cluster: bool = False, database: bool = False) -> str:
    """The command that gives a Redis user just the rights that agentspec needs, but for its password.

    Append >PASSWORD, or #SHA256 of one, and enter it at the server, or in its ACL file without the leading ACL SETUSER.

    Args:
        scope: The only one that the user may use; None: all.
        cluster: For redis-cluster://.
        database: For a database other than 0.

    Raises:
        ConfigError: The name has characters that end it.
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
