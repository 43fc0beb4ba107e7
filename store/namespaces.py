"""Namespaces: names that keep the tenants' entries in a store apart without revealing who the tenants are."""

from __future__ import annotations

import hashlib
import hmac
import json

_DOMAIN = b"agentspec namespace 1\0"


def namespace_id(tenant: str, key: bytes | None) -> str:
    """The namespace of a tenant, 32 hexadecimal digits.

    With a key it is an HMAC-SHA256, so a guess of a tenant's name cannot be checked without the key. Without a key it
    is a SHA-256, which hides a tenant's name only as long as nobody guesses it. All replicas must have the same key.
    """
    name = _DOMAIN + tenant.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(name).hexdigest() if key is None else hmac.new(key, name, "sha256").hexdigest()
    return digest[:32]


def joined(value: str, *others: str) -> str:
    """One name for several values. A `value` without others is its own name, and no two lists have the same name."""
    if not any(others) and not value.startswith("\0"):
        return value
    return "\0" + json.dumps([value, *others])
