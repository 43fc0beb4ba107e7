"""The number of tokens a forward pass can have before it takes longer than reading the weights (SSSD, section 3.2)."""

from __future__ import annotations

import math
from dataclasses import replace

from agentspec.errors import ConfigError
from agentspec.scheduling.baselines.fixed import ALL_NODES, LengthController
from agentspec.scheduling.columns import candidate_widths
from agentspec.scheduling.config import ControlConfig
from agentspec.scheduling.costs.profile import Profile
from agentspec.scheduling.plan import Reason, StepPlan, StepState


def free_tokens(profile: Profile | None) -> float:
    """The greatest b * s_q, rows times tokens per row, for which a matrix product of hidden size h takes no extra time.

    The solution of 1 / (2 * (1 / h + 1 / (2 * b * s_q))) = peak FLOP/s / peak bytes/s, with two bytes per parameter. If
    h is not known, it is taken as infinite. If no b * s_q reaches the device's ratio, the result is infinite.

    For the paper's example, h = 4096 on a device of 280 TFLOP/s and 0.8 TB/s, the equation gives 422. The paper prints
    435, which belongs to 0.78 TB/s. Raises ConfigError if there is no profile, or it has no peak figures.
    """
    if profile is None or profile.peak_flops is None or profile.peak_bandwidth is None:
        got = "no profile" if profile is None else f"{profile.peak_flops} and {profile.peak_bandwidth}"
        raise ConfigError(
            f"the controller roofline needs a profile with peak_flops and peak_bandwidth, got {got}; measure one with "
            "`agentspec profile`"
        )
    inverse = profile.peak_bandwidth / profile.peak_flops
    if profile.hidden_size is not None:
        inverse -= 2.0 / profile.hidden_size
    return 1.0 / inverse if inverse > 0 else float("inf")


class RooflineController(LengthController):
    """Verifies as many tokens as take no longer than reading the weights, by the device's peak figures (SSSD, section
    3.2)."""

    name = "roofline"
    reason: Reason = "budget"

    def __init__(self, config: ControlConfig, profile: Profile | None) -> None:
        """Raises ConfigError if the profile has no peak figures."""
        super().__init__(config, profile)
        self.budget = free_tokens(profile)
        """b * s_q"""

    def plan(self, state: StepState) -> StepPlan:
        # Padding uses the budget too, so the width is the greatest one within it.
        widths = candidate_widths(state.widths, state.max_width)
        within = widths[widths * len(state.drafts) <= self.budget]
        greatest = int(within[-1]) if len(within) else 1
        return super().plan(replace(state, max_width=greatest))

    def _length(self, rows: int) -> int:
        return math.floor(min(self.budget / max(rows, 1), ALL_NODES)) - 1

    def describe(self) -> dict[str, float | str | None]:
        return {**super().describe(), "free_tokens": self.budget}
