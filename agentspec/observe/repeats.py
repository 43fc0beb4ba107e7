"""Counts how much of the outputs repeats earlier text. Suffix drafts can come only from such repeats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay.runs import windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """The number of positions in a namespace's outputs at which a repeat of LENGTH tokens begins."""

    places: int
    own: int
    """The number of positions that repeat text of the same namespace."""
    elsewhere: int
    """The number of positions that repeat text of other namespaces only."""


def repeats_by_namespace(outputs: Sequence[tuple[str, NDArray[np.int32]]]) -> dict[str, Repeats]:
    """Repeats within and across namespaces. `outputs`: namespace and tokens, int32[n], of each output, the earliest
    first."""
    names = sorted({name for name, _ in outputs})
    numbers = {name: number for number, name in enumerate(names)}
    hashes = [windows(tokens) for _, tokens in outputs]
    if not hashes:
        return {}
    all_places = np.concatenate(hashes)
    spaces = np.repeat([numbers[name] for name, _ in outputs], [len(part) for part in hashes])
    said = _said_before(all_places)
    own = np.zeros(len(all_places), bool)
    for number in range(len(names)):
        inside = np.flatnonzero(spaces == number)
        own[inside] = _said_before(all_places[inside])
    elsewhere = said & ~own
    counted = [np.bincount(spaces, of, len(names)).astype(int).tolist() for of in (np.ones(len(own)), own, elsewhere)]
    return {
        name: Repeats(places=places, own=mine, elsewhere=theirs)
        for name, places, mine, theirs in zip(names, *counted, strict=True)
    }


def share_in(text: NDArray[np.uint64], sources: Iterable[NDArray[np.uint64]]) -> NDArray[np.bool_]:
    """For each window of a text (see windows()), whether it is also in one of the sources."""
    parts = [part for part in sources if len(part)]
    return np.isin(text, np.concatenate(parts)) if parts else np.zeros(len(text), bool)


def _said_before(places: NDArray[np.uint64]) -> NDArray[np.bool_]:
    _, first, inverse = np.unique(places, return_index=True, return_inverse=True)
    return first[inverse.reshape(-1)] < np.arange(len(places))
