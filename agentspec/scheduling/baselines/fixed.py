"""Controllers whose length does not depend on the drafts: their base class, a fixed length, and a sweep over widths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from agentspec.scheduling.columns import candidate_widths, num_drafted, powers_of_two, width_of
from agentspec.scheduling.config import ControlConfig
from agentspec.scheduling.costs.online import OnlineCosts
from agentspec.scheduling.costs.profile import Profile
from agentspec.scheduling.plan import Reason, StepPlan, StepState

ALL_NODES = 1 << 16
"""More nodes than any draft has."""


class LengthController:
    """Verifies at most `_length(rows)` drafted nodes per row, padded to the next width, whatever the drafts are."""

    name = ""
    reason: Reason = "length"

    def __init__(self, config: ControlConfig, profile: Profile | None) -> None:
        self.config = config
        self.costs = OnlineCosts(profile)
        self._accepted_a_node = 0.0
        """Running share of verified nodes that were accepted, used for predictions."""

    def _length(self, rows: int) -> int:
        raise NotImplementedError

    def plan(self, state: StepState) -> StepPlan:
        rows = len(state.drafts)
        length = max(min(self._length(rows), state.max_width - 1), 0) if rows else 0
        width = width_of(length, candidate_widths(state.widths, state.max_width))
        num_nodes = np.minimum(num_drafted(state.drafts), np.int32(min(length, width - 1)))
        self.costs.note_step(rows, width, state.context)
        return StepPlan(
            width=width,
            num_nodes=num_nodes,
            expected_tokens=rows + self._accepted_a_node * float(num_nodes.sum()),
            seconds=self.costs.seconds(state.context, rows * width),
            reason=self.reason,
        )

    def observe(self, plan: StepPlan, num_accepted: NDArray[np.int32], seconds: float, *, context: int) -> None:
        self.costs.observe(context, plan.num_tokens, seconds)
        drafted = int(plan.num_nodes.sum())
        if drafted:
            share = int(num_accepted.sum()) / drafted
            self._accepted_a_node += 0.02 * (share - self._accepted_a_node)

    def describe(self) -> dict[str, float | str | None]:
        return {"controller": self.name, **self.costs.describe()}


class FixedController(LengthController):
    """Always the same length; 0 is plain decoding."""

    name = "fixed"

    def _length(self, rows: int) -> int:
        return self.config.length

    def describe(self) -> dict[str, float | str | None]:
        return {**super().describe(), "length": float(self.config.length)}


class SweepController(LengthController):
    """Takes each width in turn, so that one server measures steps of all widths. If every width is allowed, these are
    1, 2, 4, and so on. It serves profiles, not users."""

    name = "sweep"

    def __init__(self, config: ControlConfig, profile: Profile | None) -> None:
        super().__init__(config, profile)
        self._turn = 0

    def plan(self, state: StepState) -> StepPlan:
        widths = candidate_widths(state.widths or powers_of_two(state.max_width), state.max_width)
        width = int(widths[self._turn % len(widths)])
        self._turn += 1
        return super().plan(replace(state, widths=(width,), max_width=width))

    def _length(self, rows: int) -> int:
        return ALL_NODES
