from __future__ import annotations

from dataclasses import replace

import pytest
from draft_states import profile

from agentspec.scheduling import MeasuredPoint, StepCost, StepTimes


def test_without_points_the_plane_is_all_there_is() -> None:
    plane = replace(profile(), target=StepCost(1.0, 2.0, 3.0))
    assert StepTimes(plane).seconds(2, 4, 10) == pytest.approx(10 + 16 + 3)


def test_what_the_points_leave_is_interpolated_and_held_beyond_them() -> None:
    points = tuple(MeasuredPoint(rows, width, rows * 10, 1.0) for rows in (1, 3) for width in (1, 5))
    left = (-1.0, 0.0, 1.0, 2.0)
    times = StepTimes(replace(profile(), target=StepCost(0.0, 0.0, 10.0), points=points, residuals=left))
    at = {(1, 1): 9.0, (1, 3): 9.5, (2, 1): 10.0, (2, 3): 10.5, (3, 5): 12.0, (9, 9): 12.0}
    assert {cell: times.seconds(*cell, context=0) for cell in at} == pytest.approx(at)


def test_no_step_takes_less_than_nothing() -> None:
    one = (MeasuredPoint(1, 1, 10, 1.0),)
    assert (
        StepTimes(replace(profile(), target=StepCost(0.0, 0.0, 1.0), points=one, residuals=(-2.0,))).seconds(1, 1, 0)
        == 0
    )
