"""Serving costs: the fit finds the costs that the points were made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from draft_states import profile
from every import every

from agentspec import ConfigError
from agentspec.scheduling import (
    MeasuredPoint,
    Profile,
    ServingCosts,
    ServingPoints,
    StepCost,
    StepTotals,
    fit_serving_costs,
)

COSTS = ServingCosts(
    request_seconds=0.01,
    prefill=StepCost(0, 1e-4, 0.01),
    step=StepCost(0, 0, 1e-3),
    overlap=True,
    by_rows=((1, -1e-4), (4, 2e-4)),
)


def points_of(costs: ServingCosts, verification: StepCost) -> ServingPoints:
    totals = []
    for rows in (1, 4, 16):
        for length in (64, 256):
            steps, context, batched = 40, 40 * rows * length, 40 * rows
            verifying = verification.alpha * context + verification.gamma * batched + verification.delta * steps
            outside = costs.step.alpha * context + costs.step.gamma * batched + costs.step.delta * steps
            totals.append(
                StepTotals(
                    rows=rows, steps=steps, context=context, batched=batched, wall=verifying + outside, outside=outside
                )
            )
    lengths = (16, 64, 256)
    prefills = [MeasuredPoint(1, length, 0, costs.prefill.seconds(0, length)) for length in lengths]
    alone = [replace(point, seconds=point.seconds + costs.request_seconds) for point in prefills]
    return ServingPoints(steps=tuple(totals), prefills=tuple(prefills), alone=tuple(alone), overlap=costs.overlap)


@every("seed", range(5))
def test_drawn_costs_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs = ServingCosts(
        request_seconds=rng.random(),
        prefill=StepCost(0.0, *rng.random(2).tolist()),
        step=StepCost(*rng.random(3).tolist()),
        overlap=bool(seed % 2),
    )
    found = fit_serving_costs(points_of(costs, StepCost(*rng.random(3).tolist())))
    assert found.request_seconds == pytest.approx(costs.request_seconds)
    for part in ("prefill", "step"):
        wanted, got = getattr(costs, part), getattr(found, part)
        assert (got.alpha, got.gamma, got.delta) == pytest.approx((wanted.alpha, wanted.gamma, wanted.delta))
    assert found.overlap == costs.overlap
    assert found.step_seconds(3, 100, 3) == pytest.approx(costs.step.seconds(100, 3))


def test_what_a_batch_size_is_spared_is_found_beside_the_plane() -> None:
    points = points_of(
        ServingCosts(request_seconds=0, prefill=StepCost(0, 1, 1), step=StepCost(0, 0.1, 9)), StepCost(0, 0, 1)
    )
    alone = [replace(total, outside=total.outside - 2.0 * total.steps * (total.rows == 1)) for total in points.steps]
    found = fit_serving_costs(replace(points, steps=tuple(alone)))
    for rows, wanted in ((1, 7.1), (4, 9.4), (16, 10.6)):
        seconds = [found.step_seconds(rows, rows * length, rows) for length in (64, 256)]
        assert sum(seconds) / 2 == pytest.approx(wanted)


def test_no_cost_is_negative() -> None:
    costs = ServingCosts(request_seconds=0.0, prefill=StepCost(0, 0.1, 0), step=StepCost(0, 0.1, 0))
    points = points_of(costs, StepCost(0, 0, 1))
    points = replace(points, alone=tuple(replace(point, seconds=1e-3) for point in points.alone))
    assert fit_serving_costs(points).request_seconds == 0


def test_too_little_is_refused() -> None:
    points = points_of(
        ServingCosts(request_seconds=0, prefill=StepCost(0, 1, 1), step=StepCost(0, 1, 1)), StepCost(0, 1, 1)
    )
    for less in (replace(points, prefills=points.prefills[:1]), replace(points, steps=()), replace(points, alone=())):
        with pytest.raises(ConfigError, match="two lengths"):
            fit_serving_costs(less)
    with pytest.raises(ConfigError, match="request_seconds"):
        ServingCosts(request_seconds=-1, prefill=StepCost(0, 1, 1), step=StepCost(0, 1, 1))
    with pytest.raises(ConfigError, match="ascending batch sizes"):
        replace(COSTS, by_rows=((4, 0.1), (1, 0.2)))


def test_a_profile_keeps_them(tmp_path: Path) -> None:
    written = replace(profile(), plain=COSTS, speculative=replace(COSTS, overlap=False))
    written.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == written
