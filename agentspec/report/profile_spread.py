"""How far a profile's times may be off at one batch size: what was measured beside what it says of the same steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from agentspec.control import Profile, ServingCosts, StepTimes


def profile_spread(profile: Profile, rows: int) -> float:
    """By what share a ratio of verifying to plain steps with about so many rows may be off; 0 where nothing was measured.

    Of the batch sizes that were measured the nearest counts: a server with c clients makes nearly all of its steps with
    about c rows.
    """
    return math.hypot(_of_verifications(profile, rows), _of_plain_steps(profile.plain, rows))


def _of_verifications(profile: Profile, rows: int) -> float:
    if not profile.points:
        return 0.0
    times, nearest = StepTimes(profile), _nearest([point.rows for point in profile.points], rows)
    return _root_mean_square(
        [
            times.seconds(point.rows, point.width, point.context) / point.seconds - 1.0
            for point in profile.points
            if point.rows == nearest
        ]
    )


def _of_plain_steps(costs: ServingCosts | None, rows: int) -> float:
    if costs is None or not costs.measured:
        return 0.0
    nearest = _nearest([total.rows for total in costs.measured], rows)
    return _root_mean_square(
        [
            total.steps
            * costs.step_seconds(total.rows, total.context / total.steps, total.batched / total.steps)
            / total.outside
            - 1.0
            for total in costs.measured
            if total.rows == nearest
        ]
    )


def _nearest(sizes: Sequence[int], rows: int) -> int:
    return min(sizes, key=lambda size: abs(size - rows))


def _root_mean_square(shares: Sequence[float]) -> float:
    return math.sqrt(fmean(share**2 for share in shares))
