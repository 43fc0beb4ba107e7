"""The input of a controller for one decode step, its decision, and the controller's interface."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from agentspec.drafts import DraftBatch

if TYPE_CHECKING:
    from agentspec.scheduling.costs.online import OnlineCosts

Reason = Literal["best", "held", "probe", "nothing-drafted", "length", "budget"]
"""Why a width was taken, in this order: it promises the most; it is the last width and promises hardly less; it is
tried to learn its yield; no row has a draft; the length is set or looked up; the hardware
computes this many tokens for free."""


_NO_ESTIMATES: NDArray[np.float64] = np.zeros(0)
_NO_SIZES: NDArray[np.int64] = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class StepState:
    """The input of a controller for one decode step of b rows."""

    drafts: DraftBatch
    """Estimates are calibrated, nodes best first in each row."""
    context: int
    """N_context: number of tokens in the KV cache over all rows."""
    widths: tuple[int, ...]
    """Widths that may be verified, ascending; a step is padded to one of them. (): any up to `max_width`."""
    max_width: int
    rest: float = 0.0
    """Seconds of every step besides verifying and the draft model."""


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """The decision of a controller: what the step verifies."""

    width: int
    """Number of tokens verified per row, root and padding included; 1 is plain decoding."""
    num_nodes: NDArray[np.int32]
    """[b], number of drafted nodes kept in each row, without the root. They are a prefix of its best-first order."""
    expected_tokens: float
    """Expected number of accepted and bonus tokens over the batch."""
    seconds: float
    """Predicted seconds of verifying, without drafting."""
    reason: Reason
    estimated: NDArray[np.float64] = field(default_factory=lambda: _NO_ESTIMATES)
    """[width - 1], for each column the sum of the uncorrected estimates of its kept nodes. Empty if the controller does
    not use estimates."""
    sizes: NDArray[np.int64] = field(default_factory=lambda: _NO_SIZES)
    """[width - 1], number of kept nodes in each column."""
    united: bool = False
    """Whether the nodes are a union with a draft model's drafts. What such unions bring is learned apart."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens verified over the batch, padding included."""
        return len(self.num_nodes) * self.width


class Controller(Protocol):
    """Decides step by step how much is verified.

    Every step is drafted for, because drafting on the host takes next to no time, and a controller that does not see
    drafts cannot learn that they have become better. observe() may come some steps late, but in the order of the plans.
    Only one thread may call at a time. Nothing is random: the same calls give the same plans.
    """

    name: str
    costs: OnlineCosts
    """The cost model that it uses; observe() refines it."""

    def plan(self, state: StepState) -> StepPlan:
        """Decides on a step."""

    def observe(self, plan: StepPlan, num_accepted: NDArray[np.int32], seconds: float, *, context: int) -> None:
        """Learns from a verification.

        Args:
            plan: What was verified.
            num_accepted: [b], accepted tokens without the bonus token.
            seconds: The measured time that plan.seconds predicted; 0 if it was not measured.
            context: N_context of the step.
        """

    def describe(self) -> dict[str, float | str | None]:
        """Its present state, for people and metrics."""
