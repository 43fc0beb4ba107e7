"""Speed-ups of made-up acceptance under made-up profiles, and intervals of a log's figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from agentspec.analysis.measures.intervals import quantile, ratio, ratio_interval
from agentspec.analysis.measures.profile_spread import profile_spread
from agentspec.analysis.measures.speedup import representative, selected, speedup_row
from agentspec.analysis.measures.states import Recorded
from agentspec.scheduling import MeasuredPoint, MeasuredRange, Profile, ProfileKey, ServingCosts, StepCost, StepTotals
from agentspec.simulation import acceptance_at_rate

PROFILE = Profile(
    key=ProfileKey(model="m", device="d", engine="e", graphs="none"),
    target=StepCost(0.0, 0.1e-3, 10e-3),
    measured=MeasuredRange(batch_sizes=(1, 64), context_lengths=(0, 4096), widths=(1, 32)),
    widths=(1, 4, 16),
)
NOTHING = StepCost(0.0, 0.0, 0.0)


def recorded(rate: str, requests: int = 30, sessions: int = 30) -> Recorded:
    acceptance = acceptance_at_rate(rate, requests, 20, 40, 16, seed=0)
    calls = np.arange(requests)
    return Recorded(acceptance, calls, tuple(str(i % sessions) for i in range(requests)), requests)


def row(profile: Profile = PROFILE, clients: int = 1, cold: str = "0.4", warm: str = "0.7") -> dict[str, float]:
    states = {"cold": recorded(cold), "warm": recorded(warm)}
    return speedup_row("p", profile, clients, states, width=16)


def test_the_range_goes_from_cold_to_warm() -> None:
    found = row()
    assert found["low"] == found["cold"]["low"] < found["cold"]["high"]  # type: ignore[index]
    assert found["high"] == found["warm"]["high"] > found["cold"]["high"]  # type: ignore[index]
    assert found["warm"]["accept_length"] > found["cold"]["accept_length"]  # type: ignore[index]
    assert speedup_row("p", PROFILE, 1, {"cold": recorded("0.4")}, width=16)["warm"] is None


def test_simulated_calls_have_the_accept_length_of_all() -> None:
    rng = np.random.default_rng(0)
    steps = rng.integers(5, 200, 300).astype(np.float64)
    tokens = np.ceil(steps * rng.uniform(1.0, 12.0, 300))
    prefilled = rng.lognormal(5.0, 1.0, 300)
    chosen = representative(tokens, steps, prefilled, 8000)
    assert 4000 < tokens[chosen].sum() < 16000
    assert tokens[chosen].sum() / steps[chosen].sum() == pytest.approx(tokens.sum() / steps.sum(), rel=0.05)
    assert prefilled[chosen].sum() / tokens[chosen].sum() == pytest.approx(prefilled.sum() / tokens.sum(), rel=0.2)
    acceptance = acceptance_at_rate("0.5", 10, 20, 40, 16, seed=0)
    part = selected(acceptance, np.array([2, 7]))
    assert part.output_tokens.tolist() == acceptance.output_tokens[[2, 7]].tolist()
    np.testing.assert_array_equal(part.accepted[-1], acceptance.accepted[acceptance.starts[8] - 1])


def test_no_speed_up_exceeds_the_accept_length() -> None:
    """A step of many tokens takes no less than a plain one, so drafts gain no more than the tokens that they add."""
    free = replace(PROFILE, target=StepCost(0.0, 0.0, 10e-3))
    for clients in (1, 8):
        for state in ("cold", "warm"):
            found = row(free, clients)[state]
            assert (found["low"] + found["high"]) / 2 < 1.02 * found["accept_length"]  # type: ignore[index]


def test_what_serving_takes_beside_steps_is_no_faster() -> None:
    costs = ServingCosts(request_seconds=0.2, prefill=NOTHING, step=NOTHING)
    plain = replace(costs, step=StepCost(0.0, 0.1e-3, 10e-3))
    served = row(replace(PROFILE, speculative=costs, plain=plain))
    assert 1.0 < served["high"] < 0.8 * row()["high"]
    slow_steps = replace(costs, step=StepCost(0.0, 0.0, 10e-3))
    assert row(replace(PROFILE, speculative=slow_steps, plain=plain))["high"] < 0.8 * served["high"]


def points(share: float, bump: float = 1.0) -> tuple[MeasuredPoint, ...]:
    """Points of one row take `share` of the plane's times, and one of their two contexts takes `bump` times as long.
    Points of eight rows take the plane's times."""
    return tuple(
        MeasuredPoint(
            rows,
            width,
            rows * length,
            (share * (bump if length == 100 else 1.0) if rows == 1 else 1.0)
            * PROFILE.target.seconds(rows * length, rows * width),
        )
        for rows in (1, 8)
        for width in (1, 4, 16)
        for length in (100, 200)
    )


def with_points(*found: MeasuredPoint) -> Profile:
    residuals = tuple(point.seconds - PROFILE.target.seconds(point.context, point.batched) for point in found)
    return replace(PROFILE, points=found, residuals=residuals)


def test_points_of_other_batch_sizes_leave_nothing_open() -> None:
    wild = points(1.0, bump=1.3)
    # The two contexts at each width contradict each other in points of one row, and agree in points of eight rows.
    assert profile_spread(with_points(*wild), 1) > 0.05
    assert profile_spread(with_points(*wild), 6) < 0.01
    assert profile_spread(PROFILE, 1) == 0.0


def test_plain_steps_that_contradict_each_other() -> None:
    def spread(*seconds: float) -> float:
        totals = tuple(
            StepTotals(rows=1, steps=10, context=1000, batched=10, wall=10 * one, outside=10 * one) for one in seconds
        )
        step = StepCost(0.0, 0.0, 10e-3)
        plain = ServingCosts(request_seconds=0.0, prefill=NOTHING, step=step, by_rows=((1, 2e-3),), measured=totals)
        return profile_spread(replace(PROFILE, plain=plain), 4)

    assert spread(12e-3, 12e-3) == pytest.approx(0.0, abs=1e-9)
    assert spread(12e-3, 24e-3) == pytest.approx(1.645 * 0.5 * 0.5**0.5)


def test_servers_that_verify_at_another_pace() -> None:
    def spread(rows: int, pace: float) -> float:
        # Ten steps of four rows, five tokens each, take `pace` times the profile's time.
        seconds = 10 * (10e-3 + 20 * 0.1e-3) * pace
        total = StepTotals(rows=4, steps=10, context=1000, batched=200, wall=seconds + 0.5, outside=0.5)
        costs = ServingCosts(request_seconds=0.0, prefill=NOTHING, step=NOTHING, measured=(total,))
        return profile_spread(replace(PROFILE, speculative=costs), rows)

    assert spread(4, 1.0) == pytest.approx(0.0, abs=1e-9)
    assert spread(9, 1.25) == spread(4, 1.25) == pytest.approx(1.645 * 0.2)


def test_points_that_contradict_each_other_widen_the_range() -> None:
    sure, unsure = row(with_points(*points(1.0))), row(with_points(*points(1.0, bump=1.3)))
    assert unsure["high"] / unsure["low"] > 1.05 * sure["high"] / sure["low"]


Items = tuple[NDArray[np.float64], NDArray[np.float64], list[str]]


def drawn(sessions: int, each: int, rng: np.random.Generator, spread: float = 0.3) -> Items:
    """Tokens and steps of sessions that have accept lengths of their own, and lengths that differ a lot."""
    lengths = np.repeat(3.0 * np.exp(spread * rng.standard_normal(sessions)), each)
    steps = np.ceil(rng.lognormal(3.0, 0.8, sessions * each))
    tokens = steps * lengths * np.exp(0.4 * rng.standard_normal(sessions * each))
    return tokens, steps, [str(i // each) for i in range(sessions * each)]


@pytest.mark.parametrize(("sessions", "each"), [(5, 6), (40, 4)])
def test_intervals_hold_the_ratio_of_another_log(sessions: int, each: int) -> None:
    rng = np.random.default_rng(0)
    held = []
    for _ in range(400):
        interval = ratio_interval(*drawn(sessions, each, rng))
        tokens, steps, _ = drawn(sessions, each, rng)
        assert interval is not None
        held.append(interval["low"] <= tokens.sum() / steps.sum() <= interval["high"])
    assert 0.85 < np.mean(held) < 0.98


def test_intervals_of_a_few_calls_hold_the_ratio_of_a_whole_log() -> None:
    rng = np.random.default_rng(1)
    held = []
    for _ in range(400):
        tokens, steps, sessions = drawn(30, 40, rng, spread=0.05)
        chosen = rng.permutation(len(tokens))[:90]
        found = ratio(tokens[chosen], steps[chosen], [sessions[i] for i in chosen], 90 / len(tokens))
        whole = drawn(30, 40, rng, spread=0.05)
        assert found is not None
        interval = found.interval()
        held.append(interval["low"] <= whole[0].sum() / whole[1].sum() <= interval["high"])
    assert 0.84 < np.mean(held) < 0.97


def test_one_session_is_taken_as_its_items() -> None:
    tokens, steps, _ = drawn(8, 1, np.random.default_rng(3))
    assert ratio_interval(tokens, steps, ["s"] * 8) == ratio_interval(tokens, steps, list("abcdefgh"))
    assert ratio_interval(tokens, np.zeros(8), ["s"] * 8) is None


@pytest.mark.parametrize(("freedom", "expected"), [(2, 2.920), (5, 2.015), (30, 1.697), (1e9, 1.645)])
def test_quantiles_are_those_of_students_t(freedom: float, expected: float) -> None:
    assert quantile(freedom) == pytest.approx(expected, rel=0.015)
