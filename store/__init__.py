"""What is remembered across requests, restarts and replicas."""

from agentspec.store.base import CONTROL, Entry, NamespaceInfo, Reader, Scope, Store, StoreInfo
from agentspec.store.redis.acl import acl_rules
from agentspec.store.urls import DEFAULT_URL, open_store, place, redact

__all__ = [
    "CONTROL", "DEFAULT_URL", "Entry", "NamespaceInfo", "Reader", "Scope", "Store", "StoreInfo", "acl_rules",
    "open_store", "place", "redact",
]  # fmt: skip
