from __future__ import annotations

import numpy as np
import pytest
from draft_states import batch, profile

from agentspec.control import ControlConfig, StepCost, StepState, make_controller
from agentspec.control.columns import column_sums, cut_first
from agentspec.control.look_ahead import LookAhead


@pytest.mark.parametrize("quality", [0.3, 0.8])
@pytest.mark.parametrize("gamma", [1e-4, 1e-2])
def test_tokens_that_are_alike_leave_nothing_to_later_steps(quality: float, gamma: float) -> None:
    look_ahead, widths = LookAhead(), np.array([1, 2, 4, 8])
    gains = 3 * quality ** np.arange(1, 8)
    for _ in range(3):
        later, constant = look_ahead.later_tokens(gains, gains, 3, widths, 0.01 + gamma * widths)
    assert later == pytest.approx(np.zeros(4), abs=1e-9)
    brought = 3 + np.concatenate([[0], gains.cumsum()])[widths - 1]
    assert constant == pytest.approx((brought / (0.01 + gamma * widths)).max())


def test_a_run_that_is_cut_is_worth_more_than_mean_drafts() -> None:
    look_ahead, widths = LookAhead(), np.array([1, 2, 4])
    seconds = np.array([1.0, 1.5, 2.5])
    for _ in range(400):
        look_ahead.later_tokens(np.array([0.5, 0.0, 0.0]), np.array([0.5, 0.0, 0.0]), 1, widths, seconds)
    # Mean drafts bring 0.5, and width 2 is no worse than others: 1.5 tokens in 1.5 seconds.
    run = np.ones(3)
    later, _ = look_ahead.later_tokens(run, run, 1, widths, np.array([1.0, 1.4, 2.5]))
    mean = 0.5 + 0.02 * 0.5
    # Width 1: node 1 is the bonus token, node 2 drafted, node 3 a bonus token with nothing known behind it.
    assert later == pytest.approx([1 - mean, 1 - mean, 0], abs=1e-3)


@pytest.mark.parametrize("seed", range(10))
def test_nodes_cut_first_are_those_whose_parents_are_kept(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 7, 3)
    rows = [rng.random(n).tolist() for n in sizes]
    parents = [[int(rng.integers(0, i + 1)) for i in range(n)] for n in sizes]
    weights = rng.random(5)
    drafts = batch(rows, parents)
    gains = column_sums(drafts, 5, drafts.estimates) * weights
    got = cut_first(drafts, weights, gains)
    for width in range(1, 6):
        expected = sum(
            estimate * weights[i]
            for row, links in zip(rows, parents, strict=True)
            for i, (estimate, parent) in enumerate(zip(row, links, strict=True))
            if parent < width <= i + 1 <= 5
        )
        assert got[width - 1] == pytest.approx(expected, abs=1e-6)


def served_runs(objective: str, seed: int) -> float:
    """Tokens a second of rows that alternate between runs of tokens that come true and single ones; a draft knows what
    is left of its row's run."""
    rng, cost = np.random.default_rng(seed), StepCost(0.0, 1e-3, 0.012)
    controller = make_controller(ControlConfig(objective=objective), profile(cost))  # type: ignore[arg-type]
    left = np.zeros(6, np.int64)
    tokens, seconds = 0, 0.0
    for _ in range(1500):
        drafts = [[0.97] * min(int(n), 15) if n else [0.1] for n in left]
        wanted = controller.wants_draft(6, 600)
        plan = controller.plan(StepState(batch(drafts if wanted else [[]] * 6), 600, (1, 2, 4, 8, 16), 16))
        accepted = np.minimum(left, plan.num_nodes).astype(np.int32)
        taken = cost.seconds(600, 6 * plan.width)
        controller.observe(plan, accepted, taken, context=600)
        tokens, seconds = tokens + 6 + int(accepted.sum()), seconds + taken
        left = np.maximum(left - accepted - 1, 0)
        left = np.where((left == 0) & (rng.random(6) < 0.1), 24, left)
    return tokens / seconds


def test_text_in_runs_is_served_faster_by_looking_ahead() -> None:
    ahead, step = (np.mean([served_runs(objective, seed) for seed in range(3)]) for objective in ("ahead", "step"))
    assert ahead > 1.03 * step
