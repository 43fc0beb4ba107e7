"""Snapshots of an engine's sealed segments, which spare a starting server from indexing the whole log, and how much of
them it loads."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import RecordError, StoreError, StoreUnavailableError
from agentspec.store.base import Store
from agentspec.store.codec import Codec
from agentspec.store.records import Manifest, SegmentRef
from agentspec.store.replication.interfaces import LearningEngine

INDEX_GROWTH = 10
"""Approximate bytes of index for each byte of the log."""
# Where namespaces want more room than there is, the latest ones get at least this share of it each.
_LEAST_SHARE = 1 / 64


@dataclass(frozen=True, slots=True)
class Loaded:
    """What load_snapshot() gave to an engine."""

    position: str = ""
    """Where to go on in the log; "" for its beginning."""
    output_ids: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    """uint64[n], the outputs' ids. Some of them may come again in the log."""
    is_most: bool = True
    """Whether the engine will have at least half of what the snapshot has."""


def shares(sizes: Sequence[int], room: int) -> list[int]:
    """Divides `room` among namespaces that want `sizes`, the latest namespace first; all in bytes of index.

    Nobody gets more than it wants, and what those leave that want little is divided equally among the others. If there
    are too many of them for that, the latest get a share that is worth loading, and the last ones nothing.
    """
    level, left = float(room), room
    for number, size in enumerate(sorted(sizes)):
        level = left / (len(sizes) - number)
        if size > level:
            break
        left -= size
    level = max(level, room * _LEAST_SHARE)
    found = []
    for size in sizes:
        found.append(min(size, int(level), room))
        room -= found[-1]
    return found


def load_snapshot(
    engine: LearningEngine, store: Store, codec: Codec, namespace: str, room: int | None = None
) -> Loaded:
    """Adds a namespace's snapshot to an engine. With `room`, in bytes of index, only its latest segments are added, so
    that they and the rest of the log fit. Raises RecordError, SegmentError if the snapshot is damaged, foreign or of a
    newer format; the engine is unchanged; StoreError if the store failed, or replaced the snapshot in the meantime; the
    engine is unchanged."""
    data = store.manifest(namespace)
    manifest = codec.decode_manifest(namespace, data) if data is not None else Manifest("", (), 0.0)
    position, segments, is_most = manifest.position, manifest.segments, True
    if room is not None:
        position, segments, is_most = _latest(store, namespace, manifest, room)
    if not segments:
        return Loaded(position, is_most=is_most)
    blobs = [
        codec.decode_segment(namespace, ref.name, store.segment(namespace, ref.name), ref.num_bytes) for ref in segments
    ]
    return Loaded(position, engine.load_segments(namespace, blobs), is_most)


def _latest(store: Store, namespace: str, manifest: Manifest, room: int) -> tuple[str, tuple[SegmentRef, ...], bool]:
    """Where to go on in the log, the segments to load, and whether that is at least half of what the snapshot has."""
    covered = manifest.position or None
    position, num_bytes = store.tail(namespace, room // INDEX_GROWTH, covered)
    kept: tuple[SegmentRef, ...] = ()
    if position == covered:
        kept = _fitting(manifest.segments, room - num_bytes * INDEX_GROWTH)
    if not kept:
        # The log may still have what the segments have.
        position, num_bytes = store.tail(namespace, room // INDEX_GROWTH)
    held = sum(ref.num_bytes for ref in kept) + num_bytes * INDEX_GROWTH
    return position or "", kept, 2 * held >= sum(ref.num_bytes for ref in manifest.segments)


def _fitting(segments: tuple[SegmentRef, ...], room: int) -> tuple[SegmentRef, ...]:
    """The latest segments that fit. One of which at least half fits counts, because the engine evicts the rest of it."""
    first = len(segments)
    while first and 2 * room >= segments[first - 1].num_bytes:
        first -= 1
        room -= segments[first].num_bytes
    return segments[first:]


def write_snapshot(
    engine: LearningEngine,
    store: Store,
    codec: Codec,
    namespace: str,
    covered: Callable[[Container[int]], str],
    *,
    now: float,
    anew: bool = False,
) -> int | None:
    """Updates a namespace's snapshot to the segments that the engine has sealed. Writes only missing segments.
    `covered`: returns the position up to which the log is covered, given the ids of outputs outside sealed segments.
    `now`: the time that the manifest gets, by which the snapshot expires.
    `anew`: write the manifest even if its segments are the same, because its position may be of an earlier log. Returns
    bytes of the segments written; 0 if there was nothing new; None if nothing was written because the engine rewrites a
    segment, whose outputs the snapshot would lack although it covers them. Raises RecordError if the snapshot that is
    there is another version's or encrypted with another key; StoreError if the store failed. The snapshot before it then
    still counts."""
    snapshot = engine.snapshot(namespace)
    if snapshot.is_rewriting:
        return None
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
        time=now,
    )
    store.write_manifest(namespace, codec.encode_manifest(namespace, manifest), wanted)
    return num_bytes


def _manifest(store: Store, codec: Codec, namespace: str) -> Manifest | None:
    try:
        data = store.manifest(namespace)
        return codec.decode_manifest(namespace, data) if data is not None else None
    except StoreUnavailableError:
        raise
    except StoreError as error:
        if isinstance(error, RecordError) and error.is_readable_elsewhere:
            raise
        # Damaged, or no manifest at all: the one made now takes its place.
        return None
