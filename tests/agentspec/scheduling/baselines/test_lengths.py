"""Controllers whose draft length is fixed, looked up by batch size, free of cost, or SpecDec++'s."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from draft_states import profile, state
from every import every

from agentspec import ConfigError
from agentspec.scheduling import (
    BatchTable,
    ControlConfig,
    LengthCurve,
    Profile,
    StepCost,
    accepted_lengths,
    free_tokens,
    make_controller,
    table_of_profile,
    table_of_speeds,
)
from agentspec.scheduling.baselines.candidate_length import candidate_length

FULL = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]


@every(("length", "width"), [(0, 1), (1, 2), (2, 4), (3, 4), (5, 8), (7, 8), (20, 8)])
def test_a_fixed_length_is_padded_to_the_next_width(length: int, width: int) -> None:
    controller = make_controller(ControlConfig(controller="fixed", length=length), profile())
    plan = controller.plan(state([FULL, FULL[:1], []]))
    assert plan.width == width
    assert plan.num_nodes.tolist() == [min(length, 7), min(length, 1), 0]
    assert plan.seconds == pytest.approx(profile().target.seconds(1000, 3 * width))


def test_any_width_will_do_where_none_are_fixed() -> None:
    controller = make_controller(ControlConfig(controller="fixed", length=4), None)
    assert controller.plan(state([FULL], widths=())).width == 5
    assert controller.plan(state([FULL], widths=(), max_width=3)).width == 3
    assert controller.plan(state([], widths=())).width == 1


def test_a_fixed_length_learns_what_it_brings() -> None:
    controller = make_controller(ControlConfig(controller="fixed", length=3), profile())
    for _ in range(300):
        plan = controller.plan(state([FULL] * 4))
        controller.observe(plan, np.array([2, 1, 0, 3], np.int32), 0.02, context=1000)
    assert plan.expected_tokens == pytest.approx(4 + 6, rel=0.01)
    assert plan.seconds == pytest.approx(0.02, rel=0.01)


@every(("rows", "length"), [(1, 7), (2, 5), (3, 3), (4, 3), (5, 3), (6, 3), (8, 4), (12, 1), (16, 1), (100, 1)])
def test_between_two_batch_sizes_the_smaller_length_is_taken(rows: int, length: int) -> None:
    table = ((1, 7), (2, 5), (4, 3), (8, 4), (16, 1))
    assert BatchTable(table).length(rows) == length
    controller = make_controller(ControlConfig(controller="batch-table", table=table), None)
    plan = controller.plan(state([FULL] * rows))
    assert plan.num_nodes.tolist() == [length] * rows
    assert controller.describe()["table"] == "1:7 2:5 4:3 8:4 16:1"


def test_a_given_table_wins_over_a_measured_one_and_that_over_a_computed_one() -> None:
    def lengths(profile: Profile, **settings: Any) -> tuple[tuple[int, int], ...]:
        return BatchTable.of(ControlConfig(controller="batch-table", **settings), profile).lengths

    measured = replace(profile(), lengths=((1, 6), (8, 2)), accepted=(0.5, 0.6))
    assert lengths(measured, table=((4, 4),)) == ((4, 4),)
    assert lengths(measured) == ((1, 6), (8, 2))
    # Nothing is accepted beyond the first token, which costs little.
    assert {length for _, length in lengths(replace(profile(), accepted=(0.9, 0.9, 0.9)))} == {1}
    assert lengths(profile()) == table_of_profile(profile(), accepted_lengths(0.7, 8)).lengths


@pytest.mark.parametrize("drafter", [None, StepCost(1e-8, 1e-6, 0.0005)])
def test_the_table_of_a_profile_has_the_fastest_lengths(drafter: StepCost | None) -> None:
    known = profile(StepCost(1e-7, 5e-4, 0.01), drafter=drafter)
    accepted = [0.8, 1.3, 1.6, 1.7]
    table = table_of_profile(known, accepted)
    assert [size for size, _ in table.lengths] == [1, 2, 4, 8, 16, 32, 64]
    context = (1 + 4000) / 2
    for rows, length in table.lengths:

        def seconds(s: int, rows: int = rows) -> float:
            drafting = s * drafter.seconds(context * rows, rows) if drafter else 0.0
            return (known.target.seconds(context * rows, rows * (s + 1)) + drafting) / (1 + [0.0, *accepted][s])

        assert seconds(length) == min(map(seconds, range(5)))
    lengths = [length for _, length in table.lengths]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1]


def test_the_table_of_speeds_has_the_fastest_lengths() -> None:
    speeds = {(1, 1): 0.3, (1, 2): 0.2, (1, 4): 0.25, (8, 0): 0.1, (8, 2): 0.15}
    assert table_of_speeds(speeds).lengths == ((1, 2), (8, 0))
    for bad in ({}, {(1, 1): 0.0}):
        with pytest.raises(ConfigError, match="a table needs seconds > 0 a token"):
            table_of_speeds(bad)


def test_the_curve_is_found_and_shown() -> None:
    curve = LengthCurve.fit([0.9 * s**0.548 for s in range(1, 9)])
    assert (curve.scale, curve.exponent) == pytest.approx((0.9, 0.548))
    with pytest.raises(ConfigError, match="at least two lengths"):
        LengthCurve.fit([0.9])
    described = make_controller(ControlConfig(controller="batch-table", acceptance=0.7), profile()).describe()
    assert 0 < float(described["length_exponent"] or 0) < 1


def test_accepted_lengths_are_those_of_drawn_chains() -> None:
    drawn = (np.random.default_rng(0).random((50_000, 5)) < 0.7).cumprod(axis=1)
    assert accepted_lengths(0.7, 5) == pytest.approx(drawn.cumsum(axis=1).mean(axis=0), abs=0.03)


def test_free_tokens_solve_the_equation_of_the_roofline() -> None:
    flops, bandwidth, hidden = 280e12, 0.8e12, 4096
    free = free_tokens(profile(peaks=(flops, bandwidth), hidden_size=hidden))
    assert 1 / (2 * (1 / hidden + 1 / (2 * free))) == pytest.approx(flops / bandwidth)
    assert free_tokens(profile(peaks=(flops, bandwidth))) == pytest.approx(350)
    assert free_tokens(profile(peaks=(flops, bandwidth), hidden_size=128)) == float("inf")


@every(("rows", "width"), [(1, 8), (43, 8), (44, 4), (87, 4), (88, 2), (175, 2), (176, 1), (400, 1)])
def test_padding_stays_within_the_free_tokens(rows: int, width: int) -> None:
    controller = make_controller(ControlConfig(controller="roofline"), profile(peaks=(280e12, 0.8e12)))
    plan = controller.plan(state([FULL] * rows))
    assert plan.width == width and plan.reason == "budget"
    assert plan.num_nodes.tolist() == [width - 1] * rows


#   p         0.9   0.8   0.5   0.9
#   1 - prod  0.1   0.28  0.64  0.676
P = [0.9, 0.8, 0.5, 0.9]


@every(("h", "length"), [(0, 1), (0.05, 1), (0.15, 2), (0.3, 3), (0.65, 4), (0.7, 4), (1, 4)])
def test_a_draft_stops_behind_the_token_that_exceeds_the_threshold(h: float, length: int) -> None:
    assert candidate_length(P, h) == length


def test_drafts_of_a_batch_stop_by_themselves_and_the_threshold_itself_is_not_exceeded() -> None:
    batch = np.array([[1, 1, 1], [0.1, 1, 1], [1, 0.1, 1], [0, 0, 0], [0.1, 0, 0.3], [0.5, 0.5, 1]], np.float32)
    assert candidate_length(batch, 0.5).tolist() == [3, 1, 2, 1, 1, 2]
    assert candidate_length(batch.reshape(2, 3, 3), 0.5).tolist() == [[3, 1, 2], [1, 1, 2]]
    assert candidate_length(np.zeros((2, 0)), 0.5).tolist() == [0, 0]


@pytest.mark.parametrize("h", [-0.1, 1.5, float("nan")])
def test_a_threshold_that_is_no_probability_is_refused(h: float) -> None:
    with pytest.raises(ConfigError, match="stopping threshold"):
        candidate_length(P, h)
