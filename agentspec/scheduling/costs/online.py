"""The cost model of a running server: it starts from a profile and follows the observed steps."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from agentspec.scheduling.costs.context_cost import ContextCost
from agentspec.scheduling.costs.cost_model import StepCost
from agentspec.scheduling.costs.profile import MeasuredRange, Profile, ProfileKey
from agentspec.scheduling.costs.running_fit import RunningFit
from agentspec.scheduling.costs.step_curve import StepCurve

_UNKNOWN = 0.02
"""Seconds assumed for every step before one was observed. Only ratios matter then."""
_LEAST_REST = 0.1
"""The least share of a step's seconds that is not of its context."""
_LEAST_LEARNED = 64
"""The first steps of a server compile and allocate."""


class OnlineCosts:
    """A StepCost that observed steps refine. Outliers count little, and drift is followed. alpha stays as it is while the
    steps do not tell it apart from the other coefficients."""

    def __init__(self, profile: Profile | None = None) -> None:
        """`profile`: the costs to start from. None: nothing is known."""
        self.profile = profile
        self._outside = 0
        target = None if profile is None else profile.target
        self._context = ContextCost(None if target is None else target.alpha)
        self._fit = RunningFit([0.1], None if target is None else (target.gamma, target.delta))
        self._curve = StepCurve()
        self._cost: StepCost | None = None
        """The fitted cost; None: to be taken from the fit again."""

    @property
    def cost(self) -> StepCost:
        """The present coefficients."""
        if self._cost is None:
            self._cost = StepCost(*self.coefficients)
        return self._cost

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """alpha, gamma and delta of `cost`."""
        if not self.known:
            return 0.0, 0.0, _UNKNOWN
        gamma, delta = self._fit.coefficients
        return self._context.value, gamma, delta

    @property
    def known(self) -> bool:
        """Whether there was a profile or an observed step."""
        return self.profile is not None or self._fit.num_observed > 0

    @property
    def num_observed(self) -> int:
        """Number of observed steps."""
        return self._fit.num_observed

    @property
    def num_surprises(self) -> int:
        """Number of times that steps showed the coefficients to be wrong."""
        return self._fit.num_surprises

    def seconds(self, context: float, batched: float) -> float:
        """Predicted seconds of a verification."""
        return self.cost.seconds(context, batched)

    def at_widths(self, context: float, batched: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predicted seconds of verifications of these numbers of tokens, by the curve that the steps have shown."""
        return self._curve.at(batched, context, self.cost)

    def note_step(self, rows: int, width: int, context: float) -> None:
        """Counts a step on whose kind the profile was not measured; every step without a profile."""
        self._outside += self.profile is None or not self.profile.covers(rows, width, context)

    def observe(self, context: float, batched: float, seconds: float) -> None:
        """Learns from the seconds of a verification. Impossible values are ignored."""
        if not (batched > 0 and 0 < seconds < math.inf):
            return
        self._context.observe(batched, context, seconds)
        # The first value of a step's context is a guess, which must not leave less than nothing.
        self._fit.observe([batched], max(seconds - self._context.value * context, _LEAST_REST * seconds))
        self._cost = None
        self._curve.observe(batched, context, seconds, self.cost)

    def learned(self, key: ProfileKey, measured: MeasuredRange, widths: tuple[int, ...]) -> Profile | None:
        """The present costs as a profile of the server `key`, learned from steps in the range `measured`; None while
        they rest on few steps."""
        alpha, gamma, delta = self.coefficients
        if self.num_observed < _LEAST_LEARNED or not gamma + delta > 0:
            return None
        note = f"learned from {self.num_observed} steps"
        return Profile(key=key, target=StepCost(alpha, gamma, delta), measured=measured, widths=widths, note=note)

    def describe(self) -> dict[str, float | str | None]:
        """alpha and gamma in microseconds per token, delta in milliseconds, the number of observed steps, and the
        number of steps outside the profile's measured range."""
        cost = self.cost
        return {
            "alpha_us": cost.alpha * 1e6,
            "gamma_us": cost.gamma * 1e6,
            "delta_ms": cost.delta * 1e3,
            "steps_observed": float(self.num_observed),
            "steps_extrapolated": float(self._outside),
        }
