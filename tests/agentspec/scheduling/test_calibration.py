"""The correction of estimates finds the power by which they are wrong, and forgets it as it grows old."""

from __future__ import annotations

import numpy as np
import pytest
from every import every
from goodput_oracle import corrected

from agentspec.scheduling.calibration import EstimateBias


def feed(bias: EstimateBias, chance: float, stated: float, steps: int, rng: np.random.Generator) -> None:
    """Feeds eight chains per step. Each token is right with probability `chance`, while its estimate says `stated`."""
    for _ in range(steps):
        accepted = np.minimum(rng.geometric(1 - chance, 8) - 1, 7).sum()
        bias.observe(8 * stated ** np.arange(1, 8), np.full(7, 8), float(accepted))


@every("power", [0.2, 0.7, 1.0, 2.0, 4.0])
@every("chance", [0.3, 0.6, 0.9])
def test_it_finds_the_power(power: float, chance: float) -> None:
    bias = EstimateBias()
    stated = chance ** (1 / power)
    feed(bias, chance, stated, 300, np.random.default_rng(0))
    expected = corrected(8 * stated ** np.arange(1, 12), np.full(11, 8), bias.exponent)
    # The estimates of columns that were never verified are right as well.
    assert expected.sum() == pytest.approx((8 * chance ** np.arange(1, 12)).sum(), rel=0.2)


def test_right_estimates_are_left_alone() -> None:
    bias = EstimateBias()
    bias.observe(np.array([3.0, 1.5, 0.0]), np.array([4, 4, 0]), 4.5)
    assert bias.exponent == pytest.approx(1.0)


@pytest.mark.parametrize(("accepted", "least", "most"), [(0.0, 3.0, 8.0), (7.0, 0.02, 0.2)])
def test_all_or_nothing_has_bounds(accepted: float, least: float, most: float) -> None:
    bias = EstimateBias()
    for _ in range(300):
        bias.observe(0.6 ** np.arange(1, 8), np.ones(7, np.int64), accepted)
    assert least <= bias.exponent <= most


def test_what_is_old_can_change_soon() -> None:
    rng = np.random.default_rng(0)
    bias = EstimateBias()
    feed(bias, 0.1, 0.8, 200, rng)
    sure = bias.exponent
    for _ in range(2000):
        bias.rest()
    assert 1.0 < bias.exponent < sure
    feed(bias, 0.8, 0.8, 8, rng)
    assert bias.exponent == pytest.approx(1.0, abs=0.35)


def test_what_is_assumed_counts_until_steps_show_something_else() -> None:
    bias, rng = EstimateBias(), np.random.default_rng(0)
    for _ in range(10):
        bias.assume(0.4)
    assert bias.exponent == pytest.approx(0.4, rel=0.05)
    feed(bias, 0.6, 0.6, 100, rng)
    bias.assume(0.4)
    assert bias.exponent == pytest.approx(1.0, rel=0.1)
