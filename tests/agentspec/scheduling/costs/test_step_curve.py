"""The curve of step times by their number of tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from every import every

from agentspec.scheduling.costs.cost_model import StepCost
from agentspec.scheduling.costs.online import OnlineCosts
from agentspec.scheduling.costs.step_curve import StepCurve

NOTHING = StepCost(0.0, 0.0, 0.02)


def roofline(tokens: float, context: float) -> float:
    """Reading the weights takes 4 ms, and from 150 tokens on arithmetic takes longer."""
    return max(4e-3, tokens / 150 * 4e-3) + 1e-8 * context


def learned(
    time: Callable[[float, float], float], widths: tuple[int, ...], steps: int, draw: random.Random, noise: float = 0.03
) -> StepCurve:
    curve = StepCurve()
    for _ in range(steps):
        tokens, context = 32.0 * draw.choice(widths), draw.uniform(1e4, 1e5)
        seconds = time(tokens, context) * (1 + abs(draw.gauss(0, noise)))
        if draw.random() < 0.03:
            # It waited for something else.
            seconds *= draw.uniform(2, 20)
        curve.observe(tokens, context, seconds, StepCost(1e-8, 1e-5, 4e-3))
    return curve


def test_it_begins_with_the_linear_cost() -> None:
    cost = StepCost(1e-6, 1e-4, 5e-3)
    tokens = np.array([1.0, 7.0, 500.0])
    assert StepCurve().at(tokens, 300.0, cost) == pytest.approx([cost.seconds(300.0, n) for n in tokens])


@every("seed", range(8))
def test_it_follows_a_roofline_through_noise_and_outliers(seed: int) -> None:
    curve = learned(roofline, (1, 2, 4, 8, 16), 600, random.Random(seed))
    for tokens in (32.0, 64.0, 128.0, 256.0, 512.0):
        (found,) = curve.at(np.array([tokens]), 5e4, StepCost(1e-8, 1e-5, 4e-3))
        assert found == pytest.approx(roofline(tokens, 5e4), rel=0.2)


def test_between_and_beyond_what_it_has_seen() -> None:
    curve = learned(lambda tokens, context: 1e-4 * tokens, (4, 8), 200, random.Random(0), noise=0.0)
    # Between its points it is a line. Beyond them each token costs as between the last two, though nothing else says so.
    found = curve.at(np.array([150.0, 1024.0]), 0.0, StepCost(0.0, 0.0, 4e-3))
    assert found == pytest.approx([0.0150, 0.1024], rel=0.1)
    # A dearer linear cost counts no more than what a token took where steps were seen: 1e-4.
    (dear,) = curve.at(np.array([1024.0]), 0.0, StepCost(0.0, 1e-3, 4e-3))
    assert dear == pytest.approx(0.1024, rel=0.1)


def test_a_first_step_that_was_slow_does_not_hide_what_follows() -> None:
    curve = StepCurve()
    curve.observe(128.0, 0.0, 0.5, NOTHING)
    for _ in range(5):
        curve.observe(256.0, 0.0, 0.006, NOTHING)
    assert curve.at(np.array([128.0]), 0.0, NOTHING)[0] == pytest.approx(0.006)


def test_the_first_wide_step_is_believed_in_part_only() -> None:
    """It may have waited for something else."""
    curve = StepCurve()
    for _ in range(8):
        curve.observe(1.0, 0.0, 0.13, NOTHING)
    curve.observe(4.0, 0.0, 0.54, NOTHING)
    at_four = np.array([4.0])
    assert 0.13 < curve.at(at_four, 0.0, NOTHING)[0] < 0.35
    curve.observe(4.0, 0.0, 0.2, NOTHING)
    assert curve.at(at_four, 0.0, NOTHING)[0] < 0.25
    for _ in range(10):
        curve.observe(4.0, 0.0, 0.2, NOTHING)
    assert curve.at(at_four, 0.0, NOTHING)[0] == pytest.approx(0.2, rel=0.01)


def test_a_disturbed_first_step_does_not_make_its_width_as_dear_as_a_wider_one() -> None:
    curve = StepCurve()
    for _ in range(5):
        curve.observe(1.0, 0.0, 0.005, NOTHING)
        curve.observe(16.0, 0.0, 0.020, NOTHING)
    curve.observe(6.0, 0.0, 600.0, NOTHING)
    assert curve.at(np.array([6.0]), 0.0, NOTHING)[0] == pytest.approx(0.010)


def test_a_line_through_steps_of_one_width_keeps_no_wider_ones_from_being_tried() -> None:
    """Steps of one token cannot tell the time of a step from that of a token."""
    curve, all_by_token = StepCurve(), StepCost(0.0, 0.13, 0.0)
    for _ in range(50):
        curve.observe(1.0, 0.0, 0.13, all_by_token)
    assert 0.13 <= curve.at(np.array([4.0]), 0.0, all_by_token)[0] < 0.25


def test_after_a_few_steps_of_a_new_width_they_are_believed() -> None:
    curve, linear = StepCurve(), StepCost(0.0, 1e-6, 0.004)
    for tokens in (64.0, 128.0, 256.0, 384.0) * 10:
        curve.observe(tokens, 0.0, roofline(tokens, 0.0), linear)
    for _ in range(5):
        curve.observe(832.0, 0.0, roofline(832.0, 0.0), linear)
    assert curve.at(np.array([832.0]), 0.0, linear)[0] == pytest.approx(roofline(832.0, 0.0), rel=0.05)


def test_a_longer_context_counts_by_its_difference() -> None:
    curve = StepCurve()
    linear = StepCost(1e-7, 0.0, 0.0)
    for _ in range(20):
        curve.observe(64.0, 1e4, 0.005, linear)
    (near,), (far,) = curve.at(np.array([64.0]), 1e4, linear), curve.at(np.array([64.0]), 5e4, linear)
    assert near == pytest.approx(0.005) and far - near == pytest.approx(4e-3)


def test_what_was_not_seen_for_long_is_forgotten() -> None:
    curve = StepCurve()
    curve.observe(1024.0, 0.0, 0.2, NOTHING)
    assert curve.at(np.array([1024.0]), 0.0, NOTHING)[0] == pytest.approx(0.2)
    for _ in range(20_000):
        curve.observe(16.0, 0.0, 0.02, NOTHING)
    assert curve.at(np.array([1024.0]), 0.0, NOTHING)[0] == pytest.approx(0.02)


@every("seed", range(20))
def test_more_tokens_never_take_less(seed: int) -> None:
    draw = random.Random(seed)
    curve = StepCurve()
    for _ in range(draw.randint(1, 300)):
        linear = StepCost(draw.random() / 1e7, draw.random() / 1e4, draw.random() / 100)
        tokens = float(draw.choice([0.5, 1, 3, 17, 64, 700, 5e4]))
        curve.observe(tokens, draw.uniform(0, 1e5), draw.random(), linear)
        found = curve.at(np.arange(1.0, 2000.0, 7.0), draw.uniform(0, 1e5), linear)
        assert np.isfinite(found).all() and (found >= 0).all()
        assert (np.diff(found) >= -1e-12).all()


def test_a_point_of_few_steps_and_a_long_context_is_not_taken_for_a_disturbed_one() -> None:
    curve, linear = StepCurve(), StepCost(alpha=3e-8, gamma=0.0, delta=0.004)
    for _ in range(100):
        curve.observe(8.0, 5e3, 0.00415, linear)
    for tokens in (64.0, 256.0):
        curve.observe(tokens, 3e5, 0.013, linear)
    assert curve.at(np.array([64.0, 128.0, 256.0]), 3e5, linear).tolist() == pytest.approx([0.013] * 3)


@every("seed", range(10))
def test_long_contexts_do_not_spoil_what_is_predicted_for_short_ones(seed: int) -> None:
    """Many long rows, then one short row, then both again: each predicts the other's steps from far away."""
    draw, costs, wrong = random.Random(seed), OnlineCosts(), 0
    for _ in range(2):
        for rows, longest, steps in ((64, 3000, 300), (1, 900, 800), (16, 900, 200), (4, 20_000, 200)):
            for _ in range(steps):
                tokens, context = float(rows * draw.choice((1, 2, 4, 8, 16))), rows * draw.uniform(0.3, 1.0) * longest
                seconds = max(4.2e-3, 2.5e-5 * tokens) + 3.3e-8 * context
                (predicted,) = costs.at_widths(context, np.array([tokens])).tolist()
                wrong += costs.num_observed > 32 and not 0.8 < predicted / seconds < 1.25
                slow = draw.uniform(1.5, 4.0) if draw.random() < 0.03 else 1.0
                costs.observe(context, tokens, seconds * slow * (1 + abs(draw.gauss(0, 0.02))))
    assert wrong <= 20


@every("seed", range(10))
def test_widths_that_were_seen_at_long_contexts_only_are_predicted_at_short_ones(seed: int) -> None:
    """A batch of long texts tries all widths. The batch of short texts after it is verified at one width only."""
    draw, costs = random.Random(seed), OnlineCosts()

    def time(tokens: float, context: float) -> float:
        return max(4.2e-3, 2.5e-5 * tokens) + 3.3e-8 * context

    for longest, widths in ((3000, (1, 2, 4, 6, 8)), (300, (2,))):
        for _ in range(200):
            tokens, context = 64.0 * draw.choice(widths), 64 * draw.uniform(0.5, 1.0) * longest
            slow = draw.uniform(1.5, 4.0) if draw.random() < 0.03 else 1.0
            costs.observe(context, tokens, time(tokens, context) * slow * (1 + abs(draw.gauss(0, 0.02))))
    for width in (1, 2, 4, 6, 8):
        (predicted,) = costs.at_widths(15e3, np.array([64.0 * width])).tolist()
        assert predicted == pytest.approx(time(64.0 * width, 15e3), rel=0.15)


@every("seed", range(10))
def test_what_short_contexts_seem_to_cost_is_not_believed_of_long_ones(seed: int) -> None:
    draw, costs = random.Random(seed), OnlineCosts()
    for longest in (60, 4000):
        for _ in range(60):
            tokens, context = float(draw.choice((8, 16, 64))), draw.uniform(0.3, 1.0) * longest
            costs.observe(context, tokens, 4.2e-3 * (1 + abs(draw.gauss(0, 0.05))))
            one, many = costs.at_widths(context, np.array([1.0, 64.0])).tolist()
            assert many < 2.5 * one and 2e-3 < many < 9e-3


@pytest.mark.parametrize("stopped", [0, 1, 100])
@every("seed", range(5))
def test_a_machine_that_was_stopped_for_minutes_predicts_long_contexts_as_before(seed: int, stopped: int) -> None:
    draw, costs = random.Random(seed), OnlineCosts()
    for step in range(stopped + 200):
        tokens, context = float(draw.choice((16, 64))), draw.uniform(1e4, 1e5)
        seconds = roofline(tokens, context) * (1 + abs(draw.gauss(0, 0.02)))
        costs.observe(context, tokens, 600.0 if step == stopped else seconds)
    for context in (1e3, 1e5, 1e6):
        (predicted,) = costs.at_widths(context, np.array([64.0])).tolist()
        assert predicted == pytest.approx(roofline(64.0, context), rel=0.25)


@every("seed", range(10))
def test_a_machine_that_was_busy_for_a_while_leaves_no_prediction_far_too_short(seed: int) -> None:
    """Other work makes steps two to four times as long for a time, while batches of one to eight requests come and go."""
    draw = random.Random(seed)
    costs = OnlineCosts()
    busy, contexts, ratios = 1.0, [500.0], []
    for step in range(1200):
        if step % 60 == 0:
            busy = draw.choice((1.0, 1.0, 2.0, 4.0))
        if step % 50 == 0:
            contexts = [draw.uniform(200, 1000) for _ in range(draw.choice((1, 2, 4, 8, 8, 8)))]
        context, rows = sum(contexts), len(contexts)
        tokens = rows * np.array([1.0, 2.0, 6.0, 12.0, 16.0])
        seconds = 0.17 + 3e-5 * context + 2e-3 * tokens
        if step > 200 and busy == 1.0:
            ratios += (costs.at_widths(context, tokens) / seconds).tolist()
        taken = draw.choice((0, 0, 0, 1, 2, 3, 4))
        costs.observe(context, float(tokens[taken]), float(seconds[taken]) * busy * (1 + abs(draw.gauss(0, 0.1))))
        contexts = [one + draw.uniform(1, 4) for one in contexts]
    assert min(ratios) > 0.25
    assert 0.9 < float(np.median(ratios)) < 2.0


@every("seed", range(10))
def test_other_work_on_the_device_makes_no_width_seem_cheaper_than_another(seed: int) -> None:
    """Steps of one width are slow for a time, and then those of another one. Both times all widths would have been slow."""
    draw, curve, linear = random.Random(seed), StepCurve(), StepCost(0.0, 1e-5, 4e-3)
    widths = np.array([32.0, 64.0, 128.0, 256.0, 512.0])
    truth = np.array([roofline(tokens, 0.0) for tokens in widths])

    def steps(number: int, tokens: Sequence[float], slower: float = 1.0) -> None:
        for _ in range(number):
            one = draw.choice(tokens)
            curve.observe(one, 0.0, roofline(one, 0.0) * slower * (1 + abs(draw.gauss(0, 0.03))), linear)

    steps(200, widths.tolist())
    for slower in (3.0, 1.0, 3.0, 1.0):
        steps(100, [draw.choice(widths.tolist())], slower)
        ratios = curve.at(widths, 0.0, linear) / truth
        assert 0.8 < ratios.min() and ratios.max() < 1.7 * ratios.min()
