"""The cost fit finds random planes, is never negative, and is refused if the points do not determine it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from every import every

from agentspec import ConfigError
from agentspec.scheduling import MeasuredPoint, StepCost, fit_step_cost


def points(cost: StepCost, noise: float = 0.0, seed: int = 0) -> list[MeasuredPoint]:
    rng = np.random.default_rng(seed)
    grid = itertools.product((1, 8, 64), (1, 4, 16), (128, 2048))
    return [
        MeasuredPoint(b, w, b * n, cost.seconds(b * n, b * w) * (1 + noise * rng.standard_normal())) for b, w, n in grid
    ]


@every("seed", range(10))
def test_a_drawn_plane_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cost = StepCost(*(rng.random(3) * [1e-6, 1e-4, 0.05]).tolist())
    exact = fit_step_cost(points(cost))
    assert [exact.cost.alpha, exact.cost.gamma, exact.cost.delta] == pytest.approx([cost.alpha, cost.gamma, cost.delta])
    assert exact.r2 == pytest.approx(1.0)
    noisy = fit_step_cost(points(cost, noise=0.02, seed=seed))
    assert noisy.cost.seconds(50_000, 500) == pytest.approx(cost.seconds(50_000, 500), rel=0.1)
    assert 0.9 < noisy.r2 < 1.0


def test_residuals_are_measured_less_fitted() -> None:
    measured = points(StepCost(1e-7, 3e-5, 0.01), noise=0.05)
    fit = fit_step_cost(measured)
    for point, residual in zip(measured, fit.residuals, strict=True):
        assert residual == pytest.approx(point.seconds - fit.cost.seconds(point.context, point.batched))
    seconds = np.array([point.seconds for point in measured])
    assert fit.r2 == pytest.approx(1 - np.square(fit.residuals).sum() / np.square(seconds - seconds.mean()).sum())


@every("seed", range(20))
def test_no_coefficient_is_negative_and_none_other_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    measured = [
        MeasuredPoint(int(b), int(w), int(b * n), 0.001 + float(rng.random()))
        for b, w, n in rng.integers(1, 65, (12, 3))
    ]
    fit = fit_step_cost(measured)
    found = np.array([fit.cost.alpha, fit.cost.gamma, fit.cost.delta])
    assert (found >= 0).all()

    def error(coefficients: np.ndarray) -> float:
        return sum((1 - coefficients @ [p.context, p.batched, 1] / p.seconds) ** 2 for p in measured)

    for _ in range(200):
        other = np.maximum(found + rng.standard_normal(3) * [1e-5, 1e-4, 1e-2], 0)
        assert error(found) <= error(other) + 1e-12


def test_fewer_than_four_points_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 4 measured points, got 3"):
        fit_step_cost(points(StepCost(1e-7, 3e-5, 0.01))[:3])


@every(
    ("sizes", "missing"),
    [
        ([(b, 1, 1000) for b in (1, 2, 4, 8)], "alpha"),
        ([(2, 4, n) for n in (100, 200, 300, 400)], "gamma"),
        ([(b, 4, b * 100) for b in (1, 2, 4, 8)], "alpha"),
        ([(1, 1, 10)] * 5, "alpha"),
        ([(b, 1, 0) for b in (1, 2, 4, 8)], "alpha"),
    ],
)
def test_points_that_do_not_determine_a_coefficient_are_refused(
    sizes: list[tuple[int, int, int]], missing: str
) -> None:
    measured = [MeasuredPoint(*size, 0.01 + 0.001 * i) for i, size in enumerate(sizes)]
    with pytest.raises(ConfigError, match=f"to determine {missing}, got {len(sizes)} points"):
        fit_step_cost(measured)


@pytest.mark.parametrize("bad", [(0, 1, 1, 0.1), (1, 1, -1, 0.1), (1, 1, 1, 0.0), (1, 1, 1, math.nan)])
def test_points_that_are_no_measurements_are_refused(bad: tuple[int, int, int, float]) -> None:
    with pytest.raises(ConfigError, match="a point must have"):
        fit_step_cost([*points(StepCost(1e-7, 3e-5, 0.01)), MeasuredPoint(*bad)])


@every("bad", [-1e-9, math.nan, math.inf, "1", True])
def test_coefficients_are_checked(bad: object) -> None:
    with pytest.raises(ConfigError, match="gamma must be seconds >= 0"):
        StepCost(0.0, bad, 0.0)  # type: ignore[arg-type]


def test_drafting_takes_a_pass_a_token() -> None:
    assert StepCost(1.0, 10.0, 100.0).drafting(context=7, rows=3, length=4) == 4 * (7 + 30 + 100)
