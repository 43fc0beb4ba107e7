"""The cost model of a running server: a profile's, kept true by the steps it takes."""

from __future__ import annotations

from agentspec.scheduling.costs.cost_model import StepCost
from agentspec.scheduling.costs.profile import Profile
from agentspec.scheduling.costs.running_fit import RunningFit

_UNKNOWN = 0.02
"""Seconds of any step before one was observed: only ratios matter then."""


class OnlineCosts:
    """StepCost, refined by observed steps: outliers count little, drift is followed, and alpha and gamma stay where
    the steps do not tell them apart."""

    def __init__(self, profile: Profile | None = None) -> None:
        """`profile`: where to start; None: nothing is known."""
        self.profile = profile
        self._outside = 0
        start = None
        if profile is not None:
            start = (profile.target.alpha, profile.target.gamma, profile.target.delta)
        self._fit = RunningFit([0.1, 0.1], start)
        self._cost: StepCost | None = None
        """What the fit says; None: to be asked again."""

    @property
    def cost(self) -> StepCost:
        """The coefficients at present."""
        if self._cost is None:
            self._cost = StepCost(*self.coefficients)
        return self._cost

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """alpha, gamma and delta of `cost`."""
        if not self.known:
            return 0.0, 0.0, _UNKNOWN
        alpha, gamma, delta = self._fit.coefficients
        return alpha, gamma, delta

    @property
    def known(self) -> bool:
        """Whether there is anything to go by."""
        return self.profile is not None or self._fit.num_observed > 0

    @property
    def num_observed(self) -> int:
        """Steps taken in."""
        return self._fit.num_observed

    @property
    def num_surprises(self) -> int:
        """How often steps showed that the coefficients were wrong."""
        return self._fit.num_surprises

    def seconds(self, context: float, batched: float) -> float:
        """Predicted seconds of a verification."""
        return self._fit.at(context, batched) if self.known else _UNKNOWN

    def covers(self, rows: int, width: int, context: float) -> bool:
        """Whether the profile was measured on such steps; without one nothing was. Steps that it does not cover are
        counted."""
        covered = self.profile is not None and self.profile.covers(rows, width, context)
        self._outside += not covered
        return covered

    def observe(self, context: float, batched: float, seconds: float) -> None:
        """Takes in the seconds of a verification; those that no clock can have are left out."""
        self._fit.observe([max(context, 1.0), batched], seconds)
        self._cost = None

    def describe(self) -> dict[str, float | str | None]:
        """The coefficients, in microseconds a token and milliseconds, how many steps they were refined by, and how
        many were decided on outside of what was measured."""
        cost = self.cost
        return {
            "alpha_us": cost.alpha * 1e6,
            "gamma_us": cost.gamma * 1e6,
            "delta_ms": cost.delta * 1e3,
            "steps_observed": float(self.num_observed),
            "steps_extrapolated": float(self._outside),
        }
