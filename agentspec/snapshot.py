"""The finished outputs of a namespace, in a form that can be copied to another process or machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class SealedSegment:
    """An immutable index of some outputs. Its bytes are the same in memory, in files and in messages."""

    name: str
    """32 hexadecimal digits, derived from the bytes: equal segments have equal names in all processes."""
    blob: NDArray[np.uint8]
    """[n], the segment's bytes, read-only. They are the index's own memory, which this array keeps alive."""
    output_ids: NDArray[np.uint64]
    """[num_outputs], oldest first."""
    times: NDArray[np.int64]
    """[num_outputs], the time at which each output was finished, in seconds since 1970."""
    num_tokens: int
    """Number of tokens of the outputs, without the prompt tails stored in front of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """All finished outputs of a namespace. Each is either in a segment or listed by its id."""

    segments: tuple[SealedSegment, ...]
    """Sealed segments, oldest first. None of them has an output that was deleted before the snapshot was taken."""
    unsealed: NDArray[np.uint64]
    """Ids of the outputs that are in none of the segments, oldest first. They are not sealed yet, not indexed yet, or
    in a segment that also has deleted outputs."""
    is_rewriting: bool
    """Whether some of them were in a segment and will soon be in one again, which lacks the deleted outputs."""
