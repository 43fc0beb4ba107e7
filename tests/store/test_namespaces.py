"""The names of tenants' namespaces in a store."""

from __future__ import annotations

import hashlib
import hmac

from agentspec.store.namespaces import namespace_id

KEY = bytes(range(32))


def test_a_namespace_is_a_digest_that_replicas_agree_on() -> None:
    name = b"agentspec namespace 1\0acme"
    assert namespace_id("acme", None) == hashlib.sha256(name).hexdigest()[:32]
    assert namespace_id("acme", KEY) == hmac.new(KEY, name, "sha256").hexdigest()[:32]


def test_tenants_keys_and_their_absence_are_told_apart() -> None:
    ids = {namespace_id(tenant, key) for tenant in ("", "a", "A", "a ", "\ud800") for key in (None, KEY, KEY[::-1])}
    assert len(ids) == 15
    assert all(len(name) == 32 and set(name) <= set("0123456789abcdef") for name in ids)
