"""A minimal controller that verifies whatever is drafted, up to a fixed width."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentspec.scheduling import OnlineCosts, StepPlan, StepState


class FixedWidth:
    """Plans `width` tokens per row, or the largest width allowed, and counts the calls that it receives."""

    name = "stand-in"

    def __init__(self, width: int) -> None:
        self.costs = OnlineCosts()
        self._width = width
        self.accepted: list[list[int]] = []
        self.states: list[StepState] = []
        self.seconds: list[float] = []

    def plan(self, state: StepState) -> StepPlan:
        self.states.append(state)
        width = min(self._width, state.max_width)
        drafted = np.minimum(np.diff(state.drafts.offsets) - 1, width - 1).astype(np.int32)
        num_tokens = state.num_tokens(drafted, width)
        return StepPlan(width, drafted, num_tokens, float(len(drafted)), 0.0, "length")

    def observe(self, plan: StepPlan, num_accepted: NDArray[np.int32], seconds: float, *, context: int) -> None:
        self.accepted.append(num_accepted.tolist())
        self.seconds.append(seconds)

    def describe(self) -> dict[str, float | str | None]:
        return {}
