"""A minimal simulated server: drafts with known acceptance, steps with known costs, and a controller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from draft_states import batch

from agentspec import DraftBatch
from agentspec.scheduling import Controller, StepCost, StepPlan, StepState


@dataclass
class Served:
    """Totals of the simulated steps."""

    tokens: int
    seconds: float
    plans: list[StepPlan]

    @property
    def goodput(self) -> float:
        return self.tokens / self.seconds


WIDTHS = (1, 2, 4, 8)


def serve(
    controller: Controller,
    cost: StepCost,
    rng: np.random.Generator,
    *,
    steps: int,
    rows: int,
    quality: Callable[[int], float],
    context: int = 1000,
    promised: float | None = None,
    noise: float = 0.0,
    delay: int = 0,
) -> Served:
    """Simulates steps in which each row drafts a chain.

    Each token is right with the probability `quality` of the step. The drafts' estimates equal it unless `promised`
    gives others. Observations arrive `delay` steps late. With noise, one step in 50 takes 10 times as long.
    """
    served = Served(0, 0.0, [])
    late: list[tuple[StepPlan, np.ndarray, float]] = []
    longest = WIDTHS[-1] - 1
    for step in range(steps):
        chance = quality(step)
        stated = chance if promised is None else promised
        drafts = _alike([stated**i for i in range(1, longest + 1)], rows)
        plan = controller.plan(StepState(drafts, context, WIDTHS, WIDTHS[-1]))
        right = np.minimum(rng.geometric(1.0 - min(chance, 1 - 1e-9), rows) - 1, longest)
        accepted = np.minimum(right, plan.num_nodes).astype(np.int32)
        seconds = cost.seconds(context, rows * plan.width)
        if noise:
            seconds *= (1 + noise * abs(rng.standard_normal())) * (10.0 if rng.random() < 0.02 else 1.0)
        late.append((plan, accepted, seconds))
        if len(late) > delay:
            old_plan, old_accepted, old_seconds = late.pop(0)
            controller.observe(old_plan, old_accepted, old_seconds, context=context)
        served.tokens += rows + int(accepted.sum())
        served.seconds += cost.seconds(context, rows * plan.width)
        served.plans.append(plan)
    return served


def _alike(row: list[float], rows: int) -> DraftBatch:
    one = batch([row])
    return DraftBatch(
        offsets=np.arange(rows + 1, dtype=np.int32) * one.offsets[1],
        tokens=np.tile(one.tokens, rows),
        parents=np.tile(one.parents, rows),
        estimates=np.tile(one.estimates, rows),
        sources=np.tile(one.sources, rows),
        match_lens=np.tile(one.match_lens, rows),
        scores=np.tile(one.scores, rows),
    )
