"""All values lie on their axis, in order, between ticks that are few and round."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from agentspec.analysis.report.page_axis import Axis, linear, logarithmic

VALUES = st.lists(st.floats(0, 1e12, allow_subnormal=False).map(lambda value: round(value, 6)), min_size=1, max_size=20)


def check(axis: Axis, values: list[float]) -> None:
    assert list(axis.ticks) == sorted(set(axis.ticks))
    assert all(axis.low * (1 - 1e-9) <= tick <= axis.high * (1 + 1e-9) for tick in axis.ticks)
    assert all(axis.low <= value <= axis.high * (1 + 1e-9) for value in values)
    places = [axis.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= place <= 100 for place in places)


@given(VALUES, st.sampled_from([0.0, 1.0]))
def test_a_linear_axis_spans_its_values_from_its_start(values: list[float], start: float) -> None:
    axis = linear("x", values, start=start)
    check(axis, [*values, start])
    assert 2 <= len(axis.ticks) <= 8


@given(VALUES.map(lambda values: [value + 1e-3 for value in values]))
def test_a_logarithmic_axis_has_equal_ways_for_equal_factors(values: list[float]) -> None:
    axis = logarithmic("x", values)
    check(axis, values)
    middle = math.sqrt(axis.low) * math.sqrt(axis.high)
    assert math.isclose(axis.at(middle), 50, abs_tol=1e-6)


def test_ticks_are_round_and_labelled_shortly() -> None:
    axis = linear("x", [3.4], start=1.0, reference=(1.0, "plain"), suffix="×")
    assert [axis.tick(tick) for tick in axis.ticks] == ["1×", "1.5×", "2×", "2.5×", "3×", "3.5×"]
    axis = logarithmic("x", [100, 2_000_000])
    assert [axis.tick(tick) for tick in axis.ticks] == ["100", "1,000", "10k", "100k", "1M"]
