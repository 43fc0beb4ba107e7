"""The error of a profile at one batch size: measured times of steps against the profile's times of the same steps.

The profile's points show the error of its formulas. Verify steps that were measured again, in the servers that measured
the costs of serving, show how much two servers of the same kind differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from agentspec.scheduling import Profile, ServingCosts, StepTimes

_DEVIATIONS = 1.645
"""The number of standard deviations to either side that hold 90 % of a normal distribution."""


def profile_spread(profile: Profile, rows: int) -> float:
    """The relative error that 9 in 10 ratios of verify to plain steps of about `rows` rows keep to; 0 if no step was
    measured.

    The nearest measured batch size is used, because nearly all steps of a server with c clients have about c rows.
    """
    return _DEVIATIONS * math.hypot(
        _of_verifications(profile, rows), _of_other_servers(profile, rows), _of_plain_steps(profile.plain, rows)
    )


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


def _of_other_servers(profile: Profile, rows: int) -> float:
    totals = profile.speculative.measured if profile.speculative is not None else ()
    if not totals:
        return 0.0
    times, nearest = StepTimes(profile), _nearest([total.rows for total in totals], rows)
    return _root_mean_square(
        [
            times.seconds(total.rows, round(total.batched / total.steps / total.rows), total.context / total.steps)
            * total.steps
            / (total.wall - total.outside)
            - 1.0
            for total in totals
            if total.rows == nearest and total.wall > total.outside
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
    return math.sqrt(fmean(share**2 for share in shares)) if shares else 0.0
