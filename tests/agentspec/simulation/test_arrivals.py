"""Arrivals of requests, acceptance rates, and built-in profiles, which agree with the papers' texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from every import every

from agentspec.errors import ConfigError
from agentspec.simulation import BUILT_IN_PROFILES, Arrivals, acceptance_at_rate, find_profile, parse_arrivals
from agentspec.simulation.acceptance import Acceptance


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


def mean_tokens(acceptance: Acceptance, drafted: int) -> float:
    """Mean number of tokens that a step yields, the bonus token included, at positions far from the outputs' ends."""
    places = int(acceptance.output_tokens[0]) - 1
    inner = acceptance.accepted.reshape(len(acceptance), places, -1)[:, : places - 40]
    return float(inner[:, :, drafted].mean()) + 1


def test_one_rate_gives_the_lengths_of_smartspec_eq_8() -> None:
    acceptance = acceptance_at_rate("0.7", 400, 10, 200, 6, 0)
    for k in range(7):
        assert mean_tokens(acceptance, k) == pytest.approx((1 - 0.7 ** (k + 1)) / 0.3, rel=0.02)


def test_drafts_of_one_rate_miss_the_same_tokens() -> None:
    acceptance = acceptance_at_rate("0.6", 1, 1, 60, 8, 5)
    runs = acceptance.accepted[:, -1].astype(int)
    for i in range(len(runs) - 1):
        assert runs[i + 1] >= runs[i] - 1, "a token that was right stays so when drafted one place later"


def test_power_law_gives_the_lengths_of_su_eq_5() -> None:
    acceptance = acceptance_at_rate("power:0.9:0.548", 500, 1, 200, 8, 0)
    for s in range(1, 9):
        assert mean_tokens(acceptance, s) == pytest.approx(0.9 * s**0.548 + 1, rel=0.02)


@pytest.mark.parametrize(("top", "nodes"), [(1, 3), (2, 14), (3, 39)])
def test_medusa_trees_give_the_lengths_of_smartspec_eq_10(top: int, nodes: int) -> None:
    alpha = 0.6
    acceptance = acceptance_at_rate(f"medusa:{alpha}:3:3", 300, 1, 200, 6, 0)
    assert acceptance.max_width == 40
    # The first nodes of the tree are the whole tree of the smaller `top`.
    head = 1 - (1 - alpha) ** top
    assert mean_tokens(acceptance, nodes) == pytest.approx(1 + head + head**2 + head**3, rel=0.02)
    assert acceptance.estimates[0, : nodes + 1].sum() == pytest.approx(1 + head + head**2 + head**3, rel=1e-5)
    assert (acceptance.parents[0, 1:] < np.arange(1, 40)).all()


def test_the_last_token_is_a_bonus() -> None:
    acceptance = acceptance_at_rate("0.999", 1, 1, 5, 8, 0)
    assert acceptance.accepted[:, -1].tolist() == [3, 2, 1, 0]


@every(
    "text",
    ["1.0", "-0.1", "power:2:0.5", "power:1:2", "medusa:0.5:9:9", "medusa:1:2:2", "x", ":"],
)
def test_bad_rates_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="got"):
        acceptance_at_rate(text, 1, 1, 2, 4, 0)


def latency(rate: float, length: int) -> float:
    """Seconds that a request with 128 prompt tokens and 128 output tokens takes at acceptance 0.7. The batch size
    follows from Little's law."""
    profile = find_profile("smartspec-a100-7b-160m")
    target, drafter = profile.target, profile.drafter
    assert drafter is not None
    steps = 127 * (1 - 0.7) / (1 - 0.7 ** (length + 1))
    alone = target.delta + length * drafter.delta
    a_row = target.gamma * (length + 1) + target.alpha * (128 + 64)
    return steps * alone / (1 - rate * (target.gamma * 128 + steps * a_row))


def test_smartspec_breaks_even_at_the_rates_of_figure_1() -> None:
    assert latency(12, 5) == pytest.approx(latency(12, 0), rel=0.01)
    assert latency(16, 3) == pytest.approx(latency(16, 0), rel=0.01)
    assert max(latency(4, 3), latency(4, 5)) < latency(4, 1) < latency(4, 0)


def test_su_speeds_up_as_section_5_2_says() -> None:
    profile = find_profile("su-rtx3090-opt-6.7b")
    assert profile.drafter is not None
    lengths = np.arange(1, 9)
    speedups = []
    for rows in (1, 2, 4, 8, 16, 32):
        seconds = np.array([profile.target.seconds(0, rows * (s + 1)) + s * profile.drafter.delta for s in lengths])
        speedups.append(float((profile.target.seconds(0, rows) * (1 + 0.9 * lengths**0.548) / seconds).max()))
    assert speedups[0] == pytest.approx(2.73, abs=0.01)
    assert speedups[-1] == pytest.approx(1.31, abs=0.01)
    assert np.mean(speedups) == pytest.approx(1.94, abs=0.01)


@pytest.mark.parametrize("name", BUILT_IN_PROFILES)
def test_files_hold_built_in_profiles(name: str, tmp_path: Path) -> None:
    profile = find_profile(name)
    profile.save(tmp_path / "profile.json")
    assert find_profile(str(tmp_path / "profile.json")) == profile
    assert "section" in profile.note


def test_others_are_refused() -> None:
    with pytest.raises(ConfigError, match="got 'no-such'"):
        find_profile("no-such")
