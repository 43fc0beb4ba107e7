"""The goodput controller finds the optimum of each step, and over many steps loses little to any fixed length."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from draft_states import drawn_rows, profile, state
from drawn_server import serve
from every import every

from agentspec.scheduling import ControlConfig, StepCost, StepPlan
from agentspec.scheduling.goodput import GoodputController

EXACT = ControlConfig(objective="step", margin=0.0, patience=1, probe_share=0.0)


def exact(cost: StepCost = StepCost(1e-7, 3e-3, 0.01)) -> GoodputController:  # noqa: B008
    return GoodputController(EXACT, profile(cost))


@every("widths", [(1, 2, 4, 8), (1, 3), (2, 5), ()])
@every("seed", range(15))
def test_no_other_width_and_prefixes_promise_more(seed: int, widths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    cost = StepCost(*(rng.random(3) * [1e-6, 5e-3, 0.02]).tolist())
    controller = exact(cost)
    for _ in range(5):
        rows = drawn_rows(rng, int(rng.integers(1, 5)), 5)
        context, max_width = int(rng.integers(1, 5000)), int(rng.integers(1, 9))
        rest = 0.02 * rng.random() * (seed % 2)
        allowed, best = sorted({1, *(w for w in widths or range(1, 9) if w <= max_width)}), 0.0
        for kept in itertools.product(*(range(len(row) + 1) for row in rows)):
            expected = len(rows) + sum(sum(row[:n]) for row, n in zip(rows, kept, strict=True))
            for width in [w for w in allowed if w > max(kept)][:1]:
                best = max(best, expected / (cost.seconds(context, len(rows) * width) + rest))
        plan = controller.plan(state(rows, context=context, widths=widths, max_width=max_width, rest=rest))
        assert plan.expected_tokens / (plan.seconds + rest) == pytest.approx(best, rel=1e-5)
        kept_sum = sum(sum(row[:n]) for row, n in zip(rows, plan.num_nodes.tolist(), strict=True))
        assert plan.expected_tokens == pytest.approx(len(rows) + kept_sum, rel=1e-5)
        assert plan.estimated.sum() == pytest.approx(kept_sum, rel=1e-5) and plan.num_nodes.dtype == np.int32
        assert plan.seconds == pytest.approx(cost.seconds(context, len(rows) * plan.width))
        assert plan.num_nodes.max() < plan.width <= max(max_width, 1)
        assert plan.num_nodes.sum() == plan.sizes.sum()


def test_steps_beyond_the_measured_range_are_counted() -> None:
    measured, unmeasured = exact(), GoodputController(EXACT, None)
    for rows, context, counted in ((64, 64_000, 0), (65, 65_000, 1), (1, 4001, 2)):
        for controller in (measured, unmeasured):
            controller.plan(state([[0.9]] * rows, context=context))
        assert measured.describe()["steps_extrapolated"] == counted
    assert unmeasured.describe()["steps_extrapolated"] == 3


@pytest.mark.parametrize("promised", [0.95, 0.3])
def test_a_bias_of_the_estimates_is_corrected(promised: float) -> None:
    cost, rng = StepCost(1e-7, 1e-3, 0.01), np.random.default_rng(0)
    controller = GoodputController(ControlConfig(), profile(cost))
    served = serve(controller, cost, rng, steps=600, rows=4, quality=lambda _: 0.6, promised=promised)
    last = served.plans[-200:]
    expected, got = sum(plan.expected_tokens for plan in last), serve_tokens(last, 0.6)
    assert expected == pytest.approx(got, rel=0.1)


@every("united", [False, True])
def test_what_unions_bring_is_learnt_apart(united: bool) -> None:
    """Steps of one kind are observed. Half as many tokens are accepted as their estimates say."""
    controller = exact()
    plan = StepPlan(
        3, np.full(4, 2, np.int32), 8.0, 0.01, "best", np.array([3.2, 2.4]), np.array([4, 4]), united=united
    )
    for _ in range(50):
        controller.observe(plan, np.array([1, 1, 1, 0], np.int32), 0.01, context=100)
    learnt, other = controller.bias_united, controller.bias
    if not united:
        learnt, other = other, learnt
    assert learnt.exponent > 1.5
    assert other.exponent == 1.0
    told = controller.describe()
    assert (told["bias"], told["bias_united"]) == (controller.bias.exponent, controller.bias_united.exponent)


def test_suffix_drafts_alone_are_taken_to_be_as_good_as_unions_have_shown() -> None:
    """Only unions are observed. All their tokens are accepted, and their estimates say three quarters."""
    controller = exact()
    drafts = np.array([6.0, 6.0]), np.array([8, 8])
    for _ in range(50):
        plan = StepPlan(3, np.full(8, 2, np.int32), 8.0, 0.01, "best", *drafts, united=True)
        controller.observe(plan, np.full(8, 2, np.int32), 0.01, context=100)
    assert controller.bias_united.exponent < controller.bias.exponent * 1.1 < 0.7
    alone = StepPlan(3, np.full(8, 2, np.int32), 8.0, 0.01, "best", *drafts)
    for _ in range(50):
        controller.observe(alone, np.array([2, 2, 2, 2, 2, 2, 0, 0], np.int32), 0.01, context=100)
    assert controller.bias.exponent > 0.85, "what they do themselves counts more"


def serve_tokens(plans: list, quality: float) -> float:
    return sum(len(plan.num_nodes) + sum(quality**i for n in plan.num_nodes for i in range(1, n + 1)) for plan in plans)


@pytest.mark.parametrize(
    ("known", "delay"), [(True, 0), (True, 2), (False, 1)], ids=["profile", "late", "no profile, late"]
)
@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("quality", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("cost", [StepCost(1e-7, 3e-5, 0.01), StepCost(1e-7, 1e-3, 0.01)], ids=["cheap", "dear"])
def test_hardly_less_than_the_best_fixed_length(
    known: bool, delay: int, rows: int, quality: float, cost: StepCost
) -> None:
    rng = np.random.default_rng(rows)
    controller = GoodputController(ControlConfig(), profile(cost) if known else None)
    served = serve(
        controller,
        cost,
        rng,
        steps=1500,
        rows=rows,
        quality=lambda _: quality,
        context=500 * rows,
        noise=0.03,
        delay=delay,
    )
    best = max(
        rows * sum(quality**i for i in range(width)) / cost.seconds(500 * rows, rows * width) for width in (1, 2, 4, 8)
    )
    assert served.goodput >= (0.98 if known else 0.96) * best


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize(
    "claimed", [StepCost(1e-7, 1e-5, 0.018), StepCost(1e-7, 1e-2, 0.005), StepCost(1e-6, 3e-3, 0.03)]
)
def test_a_wrong_profile_is_put_right(rows: int, claimed: StepCost) -> None:
    cost, rng = StepCost(1e-7, 1e-3, 0.01), np.random.default_rng(0)
    controller = GoodputController(ControlConfig(), profile(claimed))
    served = serve(
        controller, cost, rng, steps=1200, rows=rows, quality=lambda _: 0.7, context=500 * rows, noise=0.03, delay=1
    )
    best = max(
        rows * sum(0.7**i for i in range(width)) / cost.seconds(500 * rows, rows * width) for width in (1, 2, 4, 8)
    )
    assert served.goodput >= 0.75 * best, "wide steps of up to eight times the seconds, until that is known"
    last = served.plans[-300:]
    got = serve_tokens(last, 0.7) / sum(cost.seconds(500 * rows, rows * plan.width) for plan in last)
    assert got >= 0.97 * best


@pytest.mark.parametrize("promised", [None, 0.5])
def test_it_comes_back_when_drafts_become_better(promised: float | None) -> None:
    rng, cost = np.random.default_rng(1), StepCost(1e-7, 1e-3, 0.01)
    controller = GoodputController(ControlConfig(), profile(cost))
    # At first hardly any token is accepted; from step 2000 on nearly all are.
    served = serve(
        controller, cost, rng, steps=4000, rows=8, quality=lambda step: 0.02 if step < 2000 else 0.99, promised=promised
    )
    assert {plan.width for plan in served.plans[1500:2000] if plan.reason != "probe"} == {1}
    widths = [plan.width for plan in served.plans[3400:]]
    assert np.median(widths) == 8
