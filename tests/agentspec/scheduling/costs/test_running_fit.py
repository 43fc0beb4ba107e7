"""A fit that is updated while a server runs finds the coefficients in spite of clock changes, hiccups and drifts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from every import every

from agentspec.scheduling.costs.running_fit import RunningFit

TRUE = np.array([1e-7, 3e-5, 0.012])


def varied(rng: np.random.Generator) -> tuple[float, float]:
    return float(rng.integers(1000, 200_000)), float(rng.integers(1, 65) * rng.choice([1, 4, 16]))


def steady(rng: np.random.Generator) -> tuple[float, float]:
    return float(rng.integers(64_000, 67_000)), float(rng.integers(60, 68))


def feed(
    fit: RunningFit,
    rng: np.random.Generator,
    draw: Callable[[np.random.Generator], tuple[float, float]],
    steps: int,
    coefficients: np.ndarray = TRUE,
    slow: int = 0,
) -> RunningFit:
    """Feeds steps with 3% of noise. One step in ten takes ten times as long, and the first `slow` steps a hundred
    times."""
    for step in range(steps):
        sizes = draw(rng)
        seconds = float(coefficients @ [*sizes, 1.0]) * (1 + 0.03 * rng.standard_normal())
        factor = 100.0 if step < slow else (10.0 if rng.random() < 0.1 else 1.0)
        fit.observe(sizes, seconds * factor)
    return fit


@every("seed", range(6))
@every("start", [None, TRUE * [5.0, 0.1, 2.0], TRUE * [0.0, 3.0, 1.0]])
def test_varied_steps_determine_every_coefficient(seed: int, start: np.ndarray | None) -> None:
    fit = feed(RunningFit([0.1, 0.1], start), np.random.default_rng(seed), varied, 400, slow=2)
    assert fit.coefficients == pytest.approx(TRUE, rel=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_what_steady_steps_cannot_tell_apart_stays_near(seed: int) -> None:
    fit = feed(RunningFit([0.1, 0.1], TRUE), np.random.default_rng(seed), steady, 2000)
    assert fit.coefficients == pytest.approx(TRUE, rel=0.5)
    assert fit.at(65_000, 64) == pytest.approx(TRUE @ [65_000, 64, 1], rel=0.05)
    assert fit.at(65_000, 1024) == pytest.approx(TRUE @ [65_000, 1024, 1], rel=0.4)


@pytest.mark.parametrize("factor", [0.3, 1.3, 5.0])
def test_a_lasting_change_of_everything_is_followed(factor: float) -> None:
    rng = np.random.default_rng(0)
    fit = feed(RunningFit([0.1, 0.1], TRUE), rng, varied, 200)
    feed(fit, rng, varied, 200, TRUE * factor)
    assert fit.coefficients == pytest.approx(TRUE * factor, rel=0.2)


def test_one_hiccup_of_a_thousand_times_changes_nothing() -> None:
    fit = feed(RunningFit([0.1, 0.1], TRUE), np.random.default_rng(0), varied, 200)
    before = fit.coefficients.copy()
    fit.observe((100_000, 512), 100.0)
    assert fit.coefficients == pytest.approx(before, rel=0.01)


def test_the_first_observation_is_met() -> None:
    fit = RunningFit([0.1, 0.3])
    fit.observe((2000, 16), 0.5)
    assert fit.at(2000, 16) == pytest.approx(0.5)
    assert fit.coefficients == pytest.approx([0.05 / 2000, 0.15 / 16, 0.3])


def test_coefficients_are_never_negative() -> None:
    rng = np.random.default_rng(3)
    fit = RunningFit([0.1, 0.1])
    for _ in range(300):
        sizes = varied(rng)
        # Larger steps are faster, which no plane with positive coefficients can describe.
        fit.observe(sizes, 0.05 / (1 + sizes[1] / 100) * (1 + 0.3 * rng.random()))
        assert min(fit.coefficients) >= 0
