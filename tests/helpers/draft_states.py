"""States of decode steps with random drafts, and profiles, for tests of controllers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentspec import DraftBatch
from agentspec.scheduling import MeasuredPoint, MeasuredRange, Profile, ProfileKey, StepCost, StepState

KEY = ProfileKey(model="tiny", device="paper", engine="sglang 0.5.23", graphs="1,2,4,8")
_COST = StepCost(1e-7, 3e-5, 0.01)
POINTS = [
    MeasuredPoint(b, w, b * n, _COST.seconds(b * n, b * w) * (1 + 0.01 * (b % 3)))
    for b in (1, 4, 16)
    for w in (1, 8)
    for n in (100, 1000)
]
"""Timed steps within 2 % of a plane."""


def batch(rows: Sequence[Sequence[float]], parents: Sequence[Sequence[int]] | None = None) -> DraftBatch:
    """Makes drafts from the estimates of each row's nodes. They are chains unless the nodes' parents are given."""
    sizes = [len(row) + 1 for row in rows]
    estimates = np.array([x for row in rows for x in (1.0, *row)], np.float32)
    links = [range(len(row)) for row in rows] if parents is None else parents
    return DraftBatch(
        offsets=np.cumsum([0, *sizes], dtype=np.int32),
        tokens=np.zeros(sum(sizes), np.int32),
        parents=np.array([x for row in links for x in (-1, *row)], np.int32),
        estimates=estimates,
        sources=np.array([int(i > 0) for size in sizes for i in range(size)], np.uint8),
        match_lens=np.array([size - 1 for size in sizes], np.int32),
        scores=np.array([sum(row) for row in rows], np.float32),
    )


def drawn_rows(rng: np.random.Generator, num_rows: int, most: int) -> list[list[float]]:
    """Draws estimates that fall along each row."""
    return [np.cumprod(rng.random(rng.integers(0, most + 1)) ** 0.5).tolist() for _ in range(num_rows)]


def state(
    rows: Sequence[Sequence[float]],
    *,
    context: int = 1000,
    widths: tuple[int, ...] = (1, 2, 4, 8),
    max_width: int = 8,
    rest: float = 0.0,
) -> StepState:
    return StepState(batch(rows), context, widths, max_width, rest)


def profile(
    cost: StepCost = StepCost(1e-7, 3e-5, 0.01),  # noqa: B008
    *,
    drafter: StepCost | None = None,
    peaks: tuple[float, float] | None = None,
    hidden_size: int | None = None,
) -> Profile:
    return Profile(
        key=KEY,
        target=cost,
        drafter=drafter,
        measured=MeasuredRange(batch_sizes=(1, 64), context_lengths=(1, 4000), widths=(1, 9)),
        widths=(1, 2, 4, 8),
        peak_flops=peaks[0] if peaks else None,
        peak_bandwidth=peaks[1] if peaks else None,
        hidden_size=hidden_size,
    )
