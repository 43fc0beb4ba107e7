"""Deletes learned outputs from a store and from every live replica.

    CONTROL's log ─> replicas forget            first, so that none writes the text again after it was removed
    namespace's log ─> entries are removed
    snapshot ─> deleted whole, since a sealed segment cannot lose one output; replicas write it again

Every deletion may be repeated. If the store fails midway, repeat the deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agentspec.errors import RecordError
from agentspec.store.base import CONTROL, Store
from agentspec.store.codec import Codec
from agentspec.store.records import ANY_NAMESPACE, Deletion, Manifest, OutputRecord

_BATCH = 1000


@dataclass(slots=True)
class Deleted:
    """Counts of what was removed from a store."""

    namespaces: int = 0
    """Number of namespaces in which something was removed."""
    entries: int = 0
    """Log entries: outputs and, where a whole namespace was deleted, unreadable entries too."""
    snapshots: int = 0

    def add(self, entries: int, snapshots: int) -> None:
        self.namespaces += bool(entries or snapshots)
        self.entries += entries
        self.snapshots += snapshots


def announce(store: Store, codec: Codec, deletions: Iterable[Deletion]) -> None:
    """Tells all replicas what to forget; raises StoreError if the log may lack a deletion."""
    entries = [(CONTROL, codec.encode(CONTROL, deletion)) for deletion in deletions]
    for start in range(0, len(entries), _BATCH):
        store.append(entries[start : start + _BATCH])


def delete_namespaces(store: Store, codec: Codec, namespaces: Sequence[str], now: float) -> Deleted:
    """Deletes all outputs that the namespaces had finished up to `now`, in seconds since 1970. Replicas forget them
    even where the store has nothing of a namespace."""
    announce(store, codec, [Deletion(namespace, None, now) for namespace in namespaces])
    deleted = Deleted()
    wanted = set(namespaces)
    for info in [info for info in store.namespaces() if info.namespace in wanted]:
        if store.remove_namespace(info.namespace):
            deleted.add(info.num_entries, info.snapshot_bytes > 0)
    return deleted


def delete_request(store: Store, codec: Codec, namespace: str, request_id: str, now: float) -> Deleted:
    """Deletes a request's outputs in a namespace or in ANY_NAMESPACE, including those that finish later.

    Snapshots of these namespaces are deleted too, because they may hold outputs that the log has lost.
    """
    announce(store, codec, [Deletion(namespace, request_id, now)])
    everywhere = namespace == ANY_NAMESPACE
    namespaces = [info.namespace for info in store.namespaces()] if everywhere else [namespace]
    return _delete_outputs(store, codec, namespaces, lambda record: record.request_id == request_id, now)


def delete_older(store: Store, codec: Codec, namespaces: Sequence[str], before: float, now: float) -> Deleted:
    """Deletes the outputs that namespaces had finished up to `before`, in seconds since 1970, and their snapshots."""
    announce(store, codec, [Deletion(namespace, None, before) for namespace in namespaces])
    return _delete_outputs(store, codec, namespaces, lambda record: record.time <= before, now)


def drop_snapshot(store: Store, codec: Codec, namespace: str, now: float) -> bool:
    """Deletes a namespace's snapshot but keeps its log; returns False if there was no snapshot."""
    manifest = store.manifest(namespace)
    if manifest is None or _is_empty(codec, namespace, manifest):
        return False
    store.write_manifest(namespace, codec.encode_manifest(namespace, Manifest("", (), now)), ())
    return True


def _is_empty(codec: Codec, namespace: str, manifest: bytes) -> bool:
    try:
        return not codec.decode_manifest(namespace, manifest).segments
    except RecordError:
        return False


def _delete_outputs(
    store: Store, codec: Codec, namespaces: Sequence[str], doomed: Callable[[OutputRecord], bool], now: float
) -> Deleted:
    deleted = Deleted()
    for namespace in namespaces:
        removed = 0
        position = None
        while entries := store.scan(namespace, position):
            position = entries[-1].position
            positions = []
            for entry in entries:
                try:
                    record = codec.decode(namespace, entry.data)
                except RecordError:
                    continue
                if isinstance(record, OutputRecord) and doomed(record):
                    positions.append(entry.position)
            if positions:
                removed += store.remove(namespace, positions)
        deleted.add(removed, drop_snapshot(store, codec, namespace, now))
    return deleted
