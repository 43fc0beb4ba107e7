"""The goodput controller decides as its oracle does, over runs of steps in which both are told the same."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np
import pytest
from draft_states import batch, profile
from goodput_oracle import oracle_controller

from agentspec import DraftBatch
from agentspec.scheduling import ControlConfig, StepCost, StepPlan, StepState
from agentspec.scheduling.goodput import GoodputController, native_goodput

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
    for name in ("width", "num_tokens", "reason"):
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
    widths = TIERS[seed % len(TIERS)]
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
        state = StepState(drafts, context, widths, max_width, float(rng.random()) * 1e-3)
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


@pytest.mark.parametrize("objective", ["run", "step"])
def test_a_step_that_looks_ahead_is_planned_as_by_a_controller_that_always_does(objective: str) -> None:
    rng = np.random.default_rng(1)
    always = native_goodput(ControlConfig(objective="ahead"), None)
    asked = native_goodput(ControlConfig(objective=objective), None)  # type: ignore[arg-type]
    never = native_goodput(ControlConfig(objective=objective), None)  # type: ignore[arg-type]
    widths = np.array([1, 2, 4, 8, 16])
    seconds = 0.01 + 0.001 * widths
    others = 0
    for _ in range(STEPS):
        drafts = drawn_batch(rng, 4, 15, float(rng.choice([0.5, 0.9])))
        plans = []
        for goodput, ahead in ((always, False), (asked, True), (never, False)):
            out = np.empty(15), np.empty(15, np.int64)
            of_drafts = drafts.offsets, drafts.parents, drafts.estimates
            plans.append(goodput.plan(*of_drafts, widths, 100.0, 0.0, seconds, 1.0, *out, ahead=ahead))
        assert plans[1] == plans[0]
        others += plans[2] != plans[0]
    assert others, "the objectives differ in some steps"


def test_the_runs_had_steps_of_all_kinds() -> None:
    if sum(reasons.values()) < len(SEEDS) * STEPS:
        pytest.skip("other tests of this file ran elsewhere, or not at all")
    assert set(reasons) == {"best", "held", "probe", "nothing-drafted"}
