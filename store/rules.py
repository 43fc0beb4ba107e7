"""Rules that all kinds of stores share."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentspec.errors import StoreError
from agentspec.store.base import CONTROL, Scope

CONTROL_SECONDS = 30 * 86400.0
"""Seconds that an entry of CONTROL is kept. By then every replica has read it or starts from the beginning."""

UNFINISHED_SECONDS = 600.0
"""Seconds after its last chunk for which a segment counts as being written; then its writer is presumed dead."""

BROKEN_SECONDS = 5.0
"""Seconds between a reader's attempts to read a log that it could not read."""

_NAMESPACE = re.compile(r"[0-9a-f]{32}|")


def is_namespace(name: object) -> bool:
    """Whether it is a namespace or CONTROL."""
    return isinstance(name, str) and _NAMESPACE.fullmatch(name) is not None


def check_namespace(namespace: str) -> None:
    """Raises StoreError unless it is a namespace or CONTROL."""
    if not is_namespace(namespace):
        raise StoreError(f"a namespace must be 32 hexadecimal digits in lower case, got {namespace!r}")


def check_entries(entries: Sequence[tuple[str, bytes]]) -> None:
    """Raises StoreError for an invalid namespace and TypeError for an entry that is not bytes."""
    for namespace, data in entries:
        check_namespace(namespace)
        if not isinstance(data, bytes):
            raise TypeError(f"an entry must be bytes, got {type(data).__name__}")


def check_tenant(namespace: str) -> None:
    """Raises StoreError unless it is a namespace that can have a snapshot."""
    check_namespace(namespace)
    if namespace == CONTROL:
        raise StoreError("the control log has no snapshot; pass a namespace of 32 hexadecimal digits")


def check_model(url: str, scope: Scope, registered: str | None, models: Sequence[str], *, create: bool) -> None:
    """Raises StoreError if a store may not be opened for a scope. `registered`: the tokenizer that the store has for
    the scope's model; None if it does not know the model. `models`: all models that the store knows."""
    if registered is None and not create:
        known = ", ".join(sorted(models)) or "none yet"
        raise StoreError(f"the store {url} has no model {scope.model!r}; it has: {known}")
    if registered is not None and registered != scope.tokenizer:
        raise StoreError(
            f"the store {url} has the model {scope.model!r} with the tokenizer {_short(registered)}, not with "
            f"{_short(scope.tokenizer)}, and their token ids differ: give this model another name, or delete the "
            "stored model (agentspec store delete --scope)"
        )


def missing_segment(namespace: str, name: str) -> StoreError:
    """What segment() and write_manifest() raise."""
    return StoreError(
        f"the store has no whole segment {name} of namespace {namespace}: it was removed or replaced; read the "
        "manifest again"
    )


def closed(url: str) -> StoreError:
    """What every call but close() raises after close()."""
    return StoreError(f"the store {url} was closed; open it again")


def _short(tokenizer: str) -> str:
    return tokenizer[:12] or "(none)"
