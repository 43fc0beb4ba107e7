"""A profile's costs at one batch size, where its planes over all sizes may be off by more than a speed-up is.

Time does not grow as evenly as a plane: one token alone takes kernels of another kind than two, and caches fill up. A
server with c clients makes nearly all of its steps with about c rows, so that the points of that size say more of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from agentspec.control import Profile, ServingCosts, StepCost


@dataclass(frozen=True, slots=True)
class LocalCosts:
    """A profile whose verifications and plain steps are those of one batch size."""

    profile: Profile
    spread: float
    """By what share a ratio of its times may be off: how far what was measured lies from what it says."""


@dataclass(frozen=True, slots=True)
class CorrectedCost(StepCost):
    """A plane whose seconds are taken at a share that depends on the batched tokens, between those given on a line."""

    batched: tuple[float, ...]
    """Ascending, one at least."""
    shares: tuple[float, ...]

    def seconds(self, context: float, batched: float) -> float:
        return StepCost.seconds(self, context, batched) * float(np.interp(batched, self.batched, self.shares))


def local_costs(profile: Profile, rows: int) -> LocalCosts:
    """The costs of steps with about so many rows, as far as the profile has points; without, it stays as it is."""
    target, missed = _verification(profile, rows)
    plain, missed_plain = _plain(profile.plain, rows)
    # The points are in these costs already.
    found = replace(profile, target=target, plain=plain, points=(), residuals=())
    return LocalCosts(found if profile.points else replace(profile, plain=plain), math.hypot(missed, missed_plain))


def _verification(profile: Profile, rows: int) -> tuple[StepCost, float]:
    """Measured over the plane's seconds of each width, over all contexts."""
    nearest = min((point.rows for point in profile.points), key=lambda of: abs(of - rows), default=rows)
    points = [point for point in profile.points if point.rows == nearest]
    if not points:
        return profile.target, 0.0
    plane = profile.target
    shares = {
        batched: fmean(p.seconds / plane.seconds(p.context, batched) for p in points if p.batched == batched)
        for batched in sorted({point.batched for point in points})
    }
    found = CorrectedCost(plane.alpha, plane.gamma, plane.delta, tuple(shares), tuple(shares.values()))
    errors = [found.seconds(point.context, point.batched) / point.seconds - 1.0 for point in points]
    return found, math.sqrt(fmean(error**2 for error in errors))


def _plain(costs: ServingCosts | None, rows: int) -> tuple[ServingCosts | None, float]:
    """Steps of plain decoding scaled to what was measured of that size."""
    if costs is None or not costs.measured:
        return costs, 0.0
    nearest = min((total.rows for total in costs.measured), key=lambda of: abs(of - rows))
    step = costs.step
    shares = [
        total.outside / (step.alpha * total.context + step.gamma * total.batched + step.delta * total.steps)
        for total in costs.measured
        if total.rows == nearest
    ]
    share = float(np.mean(shares))
    scaled = StepCost(share * step.alpha, share * step.gamma, share * step.delta)
    return replace(costs, step=scaled, by_rows=()), float(np.std(shares) / share)
