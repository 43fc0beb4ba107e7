"""What is remembered across requests, restarts and replicas."""

from agentspec.store.base import CONTROL, Entry, NamespaceInfo, Reader, Scope, Store, StoreInfo
from agentspec.store.redis.acl import acl_rules
from agentspec.store.urls import DEFAULT_URL, delete_scope, list_scopes, open_store, redact

__all__ = [
    "CONTROL", "DEFAULT_URL", "Entry", "NamespaceInfo", "Reader", "Scope", "Store", "StoreInfo", "acl_rules",
    "delete_scope", "list_scopes", "open_store", "redact",
]  # fmt: skip
