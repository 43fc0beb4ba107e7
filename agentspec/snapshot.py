"""What a namespace has of finished outputs, in a form that can be taken elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class SealedSegment:
    """Some outputs in one immutable index, in a form that is the same in memory, in files and in messages."""

    name: str
    """32 hexadecimal digits made from its bytes: the same segment has the same name in any process, another one has
    another."""
    blob: NDArray[np.uint8]
    """[n], its bytes, read-only: the index's own memory, which stays as long as this array does."""
    output_ids: NDArray[np.uint64]
    """[num_outputs], oldest first."""
    times: NDArray[np.int64]
    """[num_outputs], when each was finished, in seconds since 1970."""
    num_tokens: int
    """Of the outputs, without the ends of prompts that stand before them."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All finished outputs of a namespace, each once: in a segment or by its id."""

    segments: tuple[SealedSegment, ...]
    """Oldest first. None has outputs that were deleted before the snapshot was taken."""
    unsealed: NDArray[np.uint64]
    """Ids of the outputs that are in none of the segments, oldest first: not sealed yet, not indexed yet, or sealed
    with others that were deleted."""
