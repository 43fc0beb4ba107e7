"""The goodput controller decides as its oracle does. The correction of estimates finds how they are wrong."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np
import pytest
from draft_states import batch, profile
from every import every
from goodput_oracle import corrected, oracle_controller

from agentspec import DraftBatch
from agentspec.scheduling import ControlConfig, StepCost, StepPlan, StepState
from agentspec.scheduling.calibration import EstimateBias
from agentspec.scheduling.goodput import GoodputController

SEEDS = range(30)
STEPS, LONG = 200, 1500
"""Of most runs, and of those that last until waits and pauses are at their longest."""
TIERS = ((), (1, 2, 4, 8, 16), (2, 5, 12), (1,))
reasons: Counter[str] = Counter()


def drawn_batch(rng: np.random.Generator, rows: int, most: int, quality: float) -> DraftBatch:
    """Random trees in which a node may promise more than the nodes before it."""
    sizes = rng.integers(0, most + 1, rows)
    parents = [[int(rng.integers(max(0, i - 2), i + 1)) for i in range(size)] for size in sizes]
    estimates = [np.cumprod(rng.random(size) ** (1 - quality)) for size in sizes]
    return batch([(row * rng.uniform(0.8, 1.0, len(row))).tolist() for row in estimates], parents)


def check_alike(plan: StepPlan, wanted: StepPlan) -> None:
    for name in ("width", "num_tokens", "reason", "extrapolated"):
        assert getattr(plan, name) == getattr(wanted, name), name
    for name in ("num_nodes", "sizes"):
        got = getattr(plan, name)
        assert got.dtype == getattr(wanted, name).dtype and got.tolist() == getattr(wanted, name).tolist()
    for name in ("expected_tokens", "seconds", "estimated"):
        assert getattr(plan, name) == pytest.approx(getattr(wanted, name), rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize("objective", ["ahead", "run", "step"])
@pytest.mark.parametrize("seed", SEEDS)
def test_it_decides_as_its_oracle_does(seed: int, objective: str) -> None:
    rng = np.random.default_rng(seed)
    cost = StepCost(*(rng.random(3) ** 2 * [2e-7, 3e-3, 0.02]).tolist())
    drafter = StepCost(1e-9, 1e-6, float(rng.random()) * 1e-3) if rng.random() < 0.3 else None
    known = profile(cost, drafter=drafter) if seed % 3 else None
    config = ControlConfig(
        objective=objective,  # type: ignore[arg-type]
        margin=float(rng.choice([0.0, 0.03])),
        patience=int(rng.integers(1, 6)),
        probe_share=float(rng.choice([0.0, 0.001, 0.1])),
    )
    controllers = GoodputController(config, known), oracle_controller(config, known)
    widths, ragged = TIERS[seed % len(TIERS)], bool(rng.integers(2))
    late: deque[tuple[StepPlan, StepPlan, np.ndarray, float, int]] = deque()
    delay = int(rng.integers(0, 3))
    is_long = seed % 5 == 0
    # In long runs the conditions change seldom.
    period = 300 if is_long else 25
    quality, generous, rows, max_width, context = 0.5, False, 1, 16, 1000
    for step in range(LONG if is_long else STEPS):
        if step % period == 0:
            quality, generous = float(rng.choice([0.05, 0.5, 0.9, 0.99])), bool(rng.random() < 0.3)
            # For part of the time steps take three times as long as the profile says.
            pace = 3.0 if step % 600 >= 150 else 1.0
            rows, max_width = int(rng.integers(0 if step else 1, 13)), int(rng.integers(1, 20))
            context = int(rng.integers(1, 5000)) * max(rows, 1)
        drafts = drawn_batch(rng, rows, min(max_width - 1, 20) if rng.random() < 0.95 else 0, quality)
        state = StepState(drafts, context, widths, max_width, float(rng.random()) * 1e-3, ragged)
        plan, other = (controller.plan(state) for controller in controllers)
        check_alike(plan, other)
        reasons[plan.reason] += 1
        accepted = (plan.num_nodes * rng.random(rows) ** (2 - 2 * quality)).astype(np.int32)
        if generous and plan.reason == "probe":
            accepted = plan.num_nodes
        seconds = pace * cost.seconds(context, plan.num_tokens) * (1 + 0.03 * abs(rng.standard_normal()))
        late.append((plan, other, accepted, seconds, context))
        if len(late) > delay:
            *plans, accepted, seconds, then = late.popleft()
            for controller, its in zip(controllers, plans, strict=True):
                controller.observe(its, accepted, seconds, context=then)  # type: ignore[arg-type]
    got, told = (controller.describe() for controller in controllers)
    assert got == {name: pytest.approx(value) if isinstance(value, float) else value for name, value in told.items()}


def test_the_runs_had_steps_of_all_kinds() -> None:
    if sum(reasons.values()) < len(SEEDS) * STEPS:
        pytest.skip("other tests of this file ran elsewhere, or not at all")
    assert set(reasons) == {"best", "held", "probe", "nothing-drafted"}


def feed(
    bias: EstimateBias, chance: float, stated: float, steps: int, rng: np.random.Generator, depth: int = 7
) -> None:
    """Feeds eight chains per step. Each token is right with probability `chance`, while its estimate says `stated`."""
    for _ in range(steps):
        accepted = np.minimum(rng.geometric(1 - chance, 8) - 1, depth).sum()
        bias.observe(8 * stated ** np.arange(1, depth + 1), np.full(depth, 8), float(accepted))


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
