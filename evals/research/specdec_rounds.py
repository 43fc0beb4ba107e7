"""Speculation rounds over texts whose chains are known: what each rule of stopping drafts, discards and verifies.

Notation (SpecDec++, section 2): N tokens are generated, by N_target forwards of the target and N_draft of the drafter;
N_discarded of the drafted tokens are not accepted. The first token of an answer comes from its prefill and is not
counted, and neither is what verification would add behind the end of an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.scheduling.baselines.candidate_length import candidate_length


@dataclass(frozen=True)
class Counts:
    """Totals over texts."""

    tokens: int = 0
    target_forwards: int = 0
    draft_forwards: int = 0
    discarded: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.tokens + other.tokens,
            self.target_forwards + other.target_forwards,
            self.draft_forwards + other.draft_forwards,
            self.discarded + other.discarded,
        )

    @property
    def discard_rate(self) -> float:
        """N_discarded / N (equation 2.3)."""
        return self.discarded / max(1, self.tokens)

    @property
    def verification_rate(self) -> float:
        """N_target / N (equation 2.3)."""
        return self.target_forwards / max(1, self.tokens)

    def latency(self, target_seconds: float, draft_seconds: float) -> float:
        """Seconds a token, T_total / N (equation 2.1)."""
        return (target_seconds * self.target_forwards + draft_seconds * self.draft_forwards) / max(1, self.tokens)


def count_rounds(matches: NDArray[np.int64], lengths: NDArray[np.int64]) -> Counts:
    """Counts of one text of S + 1 counted tokens' places, walked round by round.

    Args:
        matches: [S], how many tokens of the chain from each start are the text's, one after the other from its first.
        lengths: [S], how many tokens a rule drafts from there.
    """
    place = target_forwards = draft_forwards = discarded = 0
    while place < len(matches):
        length = int(lengths[place])
        kept = min(length, int(matches[place]))
        target_forwards += 1
        draft_forwards += length
        discarded += length - kept
        place += kept + 1
    return Counts(len(matches), target_forwards, draft_forwards, discarded)


def count_fixed(texts: Iterable[NDArray[np.int64]], length: int) -> Counts:
    """Counts of drafts of `length` tokens over texts, each given by its `matches`."""
    return sum((count_rounds(matches, np.full(len(matches), length)) for matches in texts), Counts())


def count_stopped(texts: Iterable[tuple[NDArray[np.int64], NDArray[np.floating]]], h: float) -> Counts:
    """Counts of drafts that stop by the rule, over texts given by their `matches` and p_i [S, K]."""
    return sum((count_rounds(matches, candidate_length(p, h)) for matches, p in texts), Counts())


def least_verification(points: Iterable[tuple[float, float]], discard_rate: float) -> float | None:
    """The verification rate that a frontier of (discard rate, verification rate) reaches at a discard rate.

    Between two points it is on the line that joins them, since a server may take turns; None where the points discard
    more throughout.
    """
    hull: list[tuple[float, float]] = []
    for point in sorted(points):
        if hull and point[1] >= hull[-1][1]:
            continue
        while len(hull) > 1 and _turns_up(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    below = [point for point in hull if point[0] <= discard_rate]
    above = [point for point in hull if point[0] > discard_rate]
    if not below:
        return None
    if not above:
        return below[-1][1]
    (x0, y0), (x1, y1) = below[-1], above[0]
    return y0 + (y1 - y0) * (discard_rate - x0) / (x1 - x0)


def _turns_up(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    """Whether the middle lies above the line from first to last."""
    line = first[1] + (last[1] - first[1]) * (middle[0] - first[0]) / (last[0] - first[0])
    return middle[1] >= line
