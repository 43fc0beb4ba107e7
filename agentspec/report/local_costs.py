"""A profile's costs at one batch size, where its planes over all sizes may be off by more than a speed-up is.

Time does not grow with rows as evenly as it does with tokens a row: kernels of another kind are taken, caches are full.
A server with c clients makes nearly all of its steps with about c rows, so that the points of that size say more of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentspec.control import MeasuredPoint, Profile, ServingCosts, StepCost
from agentspec.control.costs import non_negative_least_squares

_LEAST_POINTS = 4
"""One more than a plane has coefficients."""


@dataclass(frozen=True, slots=True)
class LocalCosts:
    """A profile whose verifications and plain steps are those of one batch size."""

    profile: Profile
    spread: float
    """By what share a ratio of its times may be off: how far what was measured lies from what it says."""


def local_costs(profile: Profile, rows: int) -> LocalCosts:
    """The costs of steps with about so many rows, as far as the profile has points; without, it stays as it is."""
    target, missed = _verification(profile, rows)
    plain, missed_plain = _plain(profile.plain, rows)
    return LocalCosts(replace(profile, target=target, plain=plain), math.hypot(missed, missed_plain))


def _verification(profile: Profile, rows: int) -> tuple[StepCost, float]:
    nearest = min((point.rows for point in profile.points), key=lambda of: abs(of - rows), default=rows)
    points = [point for point in profile.points if point.rows == nearest]
    if not points:
        return profile.target, 0.0
    if len(points) < _LEAST_POINTS or len({point.width for point in points}) < 2:
        return profile.target, _missed(profile.target, points)
    seconds = np.array([point.seconds for point in points])
    design = np.array([(point.context, point.batched, 1.0) for point in points])
    found = StepCost(*non_negative_least_squares(design / seconds[:, None], np.ones(len(points))).tolist())
    return found, _missed(found, points)


def _missed(cost: StepCost, points: Sequence[MeasuredPoint]) -> float:
    """The root mean square of relative errors."""
    errors = [cost.seconds(point.context, point.batched) / point.seconds - 1.0 for point in points]
    return math.sqrt(sum(error**2 for error in errors) / len(errors))


def _plain(costs: ServingCosts | None, rows: int) -> tuple[ServingCosts | None, float]:
    """Steps of plain decoding scaled to what was measured of that size."""
    if costs is None or not costs.measured:
        return costs, 0.0
    sizes = {total: total.batched / total.steps for total in costs.measured}
    nearest = min(sizes.values(), key=lambda of: abs(of - rows))
    step = costs.step
    shares = [
        total.outside / (step.alpha * total.context + step.gamma * total.batched + step.delta * total.steps)
        for total, size in sizes.items()
        if size == nearest
    ]
    share = float(np.mean(shares))
    scaled = StepCost(share * step.alpha, share * step.gamma, share * step.delta)
    return replace(costs, step=scaled), float(np.std(shares) / share)
