"""Text comes in runs. What a step cuts from a draft, the next step drafts again."""

from __future__ import annotations

import numpy as np
from draft_states import batch, profile

from agentspec.scheduling import ControlConfig, StepCost, StepState, make_controller


def served_runs(objective: str, seed: int) -> float:
    """Tokens per second of rows that alternate between runs of predictable tokens and single tokens. A draft covers
    what is left of its row's run, up to 15 tokens."""
    rng, cost = np.random.default_rng(seed), StepCost(0.0, 1e-3, 0.012)
    controller = make_controller(ControlConfig(objective=objective), profile(cost))  # type: ignore[arg-type]
    left = np.zeros(6, np.int64)
    tokens, seconds = 0, 0.0
    for _ in range(1500):
        drafts = [[0.97] * min(int(n), 15) if n else [0.1] for n in left]
        plan = controller.plan(StepState(batch(drafts), 600, (1, 2, 4, 8, 16), 16))
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
