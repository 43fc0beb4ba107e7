"""Snapshots of an engine's sealed segments, which spare a starting server from indexing the whole log."""

from __future__ import annotations

import time
from collections.abc import Callable, Container

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import StoreError, StoreUnavailableError
from agentspec.store.base import Store
from agentspec.store.codec import Codec
from agentspec.store.records import Manifest, SegmentRef
from agentspec.store.replication.interfaces import LearningEngine


def load_snapshot(engine: LearningEngine, store: Store, codec: Codec, namespace: str) -> tuple[str, NDArray[np.uint64]]:
    """Adds a namespace's snapshot to an engine. Returns the position in the log to go on from, "" for its beginning,
    and the ids of the outputs loaded, some of which may come again in the log. Raises RecordError, SegmentError if the
    snapshot is damaged, foreign or of a newer format; the engine is unchanged; StoreError if the store failed, or
    replaced the snapshot in the meantime; the engine is unchanged."""
    data = store.manifest(namespace)
    if data is None:
        return "", np.empty(0, np.uint64)
    manifest = codec.decode_manifest(namespace, data)
    blobs = [
        codec.decode_segment(namespace, ref.name, store.segment(namespace, ref.name), ref.num_bytes)
        for ref in manifest.segments
    ]
    return manifest.position, engine.load_segments(namespace, blobs)


def write_snapshot(
    engine: LearningEngine,
    store: Store,
    codec: Codec,
    namespace: str,
    covered: Callable[[Container[int]], str],
    *,
    anew: bool = False,
) -> int:
    """Updates a namespace's snapshot to the segments that the engine has sealed. Writes only missing segments.
    `covered`: returns the position up to which the log is covered, given the ids of outputs outside sealed segments.
    `anew`: write the manifest even if its segments are the same, because its position may be of an earlier log. Returns
    bytes of the segments written; 0 if there was nothing new. Raises StoreError if the store failed; the snapshot
    before it still counts."""
    snapshot = engine.snapshot(namespace)
    position = covered(frozenset(snapshot.unsealed.tolist()))
    present = _manifest(store, codec, namespace)
    there = {ref.name for ref in present.segments} if present else set()
    wanted = {segment.name for segment in snapshot.segments}
    if wanted == there and (present is not None or not wanted) and not (anew and wanted):
        return 0
    num_bytes = 0
    for segment in snapshot.segments:
        if segment.name not in there:
            store.write_segment(
                namespace, segment.name, codec.encode_segment(namespace, segment.name, np.asarray(segment.blob))
            )
            num_bytes += segment.blob.nbytes
    manifest = Manifest(
        position=position,
        segments=tuple(
            SegmentRef(segment.name, segment.blob.nbytes, len(segment.output_ids), segment.num_tokens)
            for segment in snapshot.segments
        ),
        time=time.time(),
    )
    store.write_manifest(namespace, codec.encode_manifest(namespace, manifest), wanted)
    return num_bytes


def _manifest(store: Store, codec: Codec, namespace: str) -> Manifest | None:
    try:
        data = store.manifest(namespace)
        return codec.decode_manifest(namespace, data) if data is not None else None
    except StoreUnavailableError:
        raise
    except StoreError:
        # Written by a newer version, damaged, or no manifest at all: the one made now takes its place.
        return None
