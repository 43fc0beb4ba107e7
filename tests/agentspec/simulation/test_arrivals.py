from __future__ import annotations

import numpy as np
import pytest
from every import every

from agentspec.errors import ConfigError
from agentspec.simulation import Arrivals, parse_arrivals


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0, 5.0])
def test_intervals_have_the_mean_and_the_variation_asked_for(cv: float) -> None:
    times, phases = Arrivals(intervals=(0.25,), cv=cv).draw(200_000, 3)
    gaps = np.diff(times)
    # The relative variance of the mean of n intervals is cv^2 / n. The bound is five standard deviations.
    assert abs(gaps.mean() / 0.25 - 1) < 5 * cv / np.sqrt(len(gaps))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
    assert not phases.any()


def test_a_rate_only_stretches_the_same_draw() -> None:
    slow, _ = parse_arrivals("poisson:1").draw(50, 7)
    fast, _ = parse_arrivals("poisson:4").draw(50, 7)
    other, _ = parse_arrivals("poisson:4").draw(50, 8)
    np.testing.assert_allclose(slow, fast * 4)
    assert not np.allclose(fast, other)


def test_equal_intervals_and_phases_by_hand() -> None:
    times, _ = Arrivals(intervals=(2.0,), cv=0.0).draw(3, 0)
    assert times.tolist() == [2, 4, 6]
    # Half of the gap that begins at 2 has passed when the phase ends at 3. The rest is half of the new 3-second gap.
    arrivals = Arrivals(intervals=(2.0, 3.0), cv=0.0, phase_seconds=3.0)
    times, phases = arrivals.draw(4, 0)
    assert times.tolist() == [2.0, 4.5, 7.0, 9.0]
    assert phases.tolist() == [0, 1, 0, 1]


def test_phases_have_their_own_rates() -> None:
    times, phases = parse_arrivals("phases:50:0.2:1:1").draw(20_000, 1)
    for phase, interval in enumerate((0.2, 1.0)):
        share = (phases == phase).sum() * interval / times[-1]
        assert share == pytest.approx(0.5, abs=0.02), "half of the time is each phase's"
    assert (((times // 50) % 2) == phases).all()


def test_a_closed_loop_starts_with_its_clients() -> None:
    times, _ = parse_arrivals("closed:3").draw(5, 0)
    assert times.tolist() == [0, 0, 0, np.inf, np.inf]


@every(
    ("text", "got"),
    [
        ("poisson:0", "got 0 in"),
        ("poisson:-1.5", "got -1.5"),
        ("poisson:nan", "got nan"),
        ("poisson:0x", "got 0x"),
        ("poisson", "got 'poisson'"),
        ("uniform:3", "got 'uniform:3'"),
        ("gamma:0:1", "got 0.0"),
        ("gamma:1:-1", "got -1.0"),
        ("gamma:1:x", "got 'x'"),
        ("phases:0:1:2:1", "got 0.0"),
        ("closed:0", "got 0"),
        ("closed:1.5", "got '1.5'"),
    ],
)
def test_bad_forms_are_refused_with_what_was_got(text: str, got: str) -> None:
    with pytest.raises(ConfigError, match=got.replace(".", r"\.")):
        parse_arrivals(text, service_rate=2.0)
    with pytest.raises(ConfigError, match="needs that rate"):
        parse_arrivals("poisson:1x")
