"""Intervals of ratios: they hold the true ratio about as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec.ab.intervals import ratio_of_sums


def test_the_ratio_is_that_of_the_sums() -> None:
    a, b = np.array([1.0, 5.0, 6.0]), np.array([2.0, 1.0, 3.0])
    found = ratio_of_sums([a], [b])
    assert found is not None and found.value == pytest.approx(2.0)
    rate = ratio_of_sums([a, b], [b, b])
    assert rate is not None and rate.value == pytest.approx(2.0)


def test_two_units_have_no_interval_and_an_empty_sum_no_ratio() -> None:
    found = ratio_of_sums([np.ones(2)], [np.ones(2)])
    assert found is not None and (found.low, found.high) == (None, None)
    assert ratio_of_sums([np.ones(3)], [np.zeros(3)]) is None


@pytest.mark.parametrize("units", [5, 10, 40])
def test_the_interval_holds_the_true_ratio_in_nineteen_of_twenty_experiments(units: int) -> None:
    drawn = np.random.default_rng(units)
    held = 0
    for _ in range(2000):
        # Tasks differ in length on both servers alike, and servers are disturbed by a fifth.
        length = drawn.lognormal(0.0, 0.6, units)
        a, b = (length * factor * drawn.lognormal(0.0, 0.2, units) for factor in (1.5, 1.0))
        found = ratio_of_sums([a], [b])
        assert found is not None and found.low is not None and found.high is not None
        held += found.low <= 1.5 <= found.high
    assert 0.91 <= held / 2000 <= 0.97
