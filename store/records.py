"""The records that a store holds: finished outputs, deletions and manifests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class OutputRecord:
    """A finished output, as Engine.add() takes it."""

    output_id: int
    """As Engine.close() returned it: unique over replicas and restarts. Its upper 32 bits are request_hash() of the
    request's id."""
    request_id: str
    time: float
    """When the request finished, in seconds since 1970 by its replica's clock."""
    num_prompt_tail: int
    """Number of leading tokens that belong to the prompt tail."""
    tokens: NDArray[np.int32]
    """[n], the end of the prompt, then the output."""


ANY_NAMESPACE = ""
"""The namespace of a deletion of a request whose namespace is not known."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """An entry of the CONTROL log that names outputs from which nothing may be drafted any more."""

    namespace: str
    """Or ANY_NAMESPACE, for a request."""
    request_id: str | None
    """The request whose outputs are deleted; None deletes all outputs that the namespace had finished up to `time`."""
    time: float
    """Seconds since 1970 by the clock of whoever asked for it."""


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A sealed segment of a snapshot."""

    name: str
    num_bytes: int
    num_outputs: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The list of sealed segments that form a namespace's snapshot."""

    position: str
    """Every log entry up to this position is in the segments or was not kept by the engine that made them. Later
    entries may be in them too. "" covers no entry, as in the manifest of a deleted snapshot."""
    segments: tuple[SegmentRef, ...]
    """Oldest first."""
    time: float
    """When the manifest was written, in seconds since 1970."""
