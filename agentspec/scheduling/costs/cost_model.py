"""How long a forward pass takes: a plane through measured seconds (SmartSpec, section 4.3, equation 7).

    T = alpha * N_context + gamma * N_batched + delta

alpha is the cost of reading the KV cache, gamma of computing, delta of reading the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ConfigError

_MIN_POINTS = 4
"""One more than there are coefficients. With fewer points, all residuals would be zero."""
_MIN_OWN_SHARE = 0.01
"""How much of a column the others must leave unexplained for its coefficient to be determined."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """The coefficients for the seconds of a forward pass. Raises ConfigError if a coefficient is negative or not
    finite."""

    alpha: float
    """Seconds per token of context, over all rows."""
    gamma: float
    """Seconds per batched token; padding counts."""
    delta: float
    """Constant seconds of a pass."""

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("gamma", self.gamma), ("delta", self.delta)):
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise ConfigError(f"{name} must be seconds >= 0 and finite, got {value!r}; measure a new profile")

    def seconds(self, context: float, batched: float) -> float:
        """Seconds of a pass over `batched` tokens that reads `context` tokens of the KV cache."""
        return self.alpha * context + self.gamma * batched + self.delta

    def drafting(self, context: float, rows: int, length: int) -> float:
        """Seconds that this model, as the draft model, takes to propose `length` tokens per row, one pass for each
        (equation 5)."""
        return length * self.seconds(context, rows)


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """The seconds of a step of `rows` rows of `width` tokens each, which read `context` tokens in all."""

    rows: int
    width: int
    context: int
    seconds: float

    @property
    def batched(self) -> int:
        return self.rows * self.width


@dataclass(frozen=True, slots=True)
class CostFit:
    """A fitted plane, and how well it fits."""

    cost: StepCost
    r2: float
    """Share of the seconds' variance that the fit explains."""
    residuals: tuple[float, ...]
    """Measured minus fitted seconds of each point."""


def fit_step_cost(points: Sequence[MeasuredPoint]) -> CostFit:
    """Fits the plane by non-negative least squares of relative errors.

    Errors are relative because clocks and other work make long steps vary more than short ones. Raises ConfigError if a
    point has impossible values, there are too few points, or they do not determine a coefficient.
    """
    for point in points:
        if min(point.rows, point.width) < 1 or point.context < 0 or not 0 < point.seconds < math.inf:
            raise ConfigError(f"a point must have rows and width >= 1, context >= 0 and seconds > 0, got {point}")
    if len(points) < _MIN_POINTS:
        raise ConfigError(f"a cost fit needs at least {_MIN_POINTS} measured points, got {len(points)}; measure more")
    seconds = np.array([point.seconds for point in points])
    design = np.array([(point.context, point.batched, 1.0) for point in points])
    _check_determined(design)
    coefficients = non_negative_least_squares(design / seconds[:, None], np.ones(len(points)))
    residuals = seconds - design @ coefficients
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    r2 = 1.0 - float((residuals**2).sum()) / spread if spread > 0 else 1.0
    return CostFit(StepCost(*coefficients.tolist()), r2, tuple(residuals.tolist()))


def _check_determined(design: NDArray[np.float64]) -> None:
    scaled = design / np.maximum(np.abs(design).max(axis=0), 1.0)
    for column, (name, what) in enumerate((("alpha", "context"), ("gamma", "batched tokens"))):
        own, others = scaled[:, column], np.delete(scaled, column, axis=1)
        left = own - others @ np.linalg.lstsq(others, own, rcond=None)[0]
        if np.linalg.norm(left) < _MIN_OWN_SHARE * np.linalg.norm(own) or not own.any():
            low, high = design[:, column].min(), design[:, column].max()
            raise ConfigError(
                f"points must differ in {what} for themselves to determine {name}, got {len(design)} points with "
                f"{what} from {low:g} to {high:g}; measure other batch sizes, widths and context lengths"
            )


def non_negative_least_squares(design: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """The coefficients, float64[k] >= 0, that fit design, float64[n, k], @ coefficients to `target`, float64[n]. The
    optimum is the unconstrained least-squares solution over the columns whose coefficients are positive in it. The
    function tries every set of columns; three columns have seven."""
    best, best_error = np.zeros(design.shape[1]), float(target @ target)
    for chosen in product((False, True), repeat=design.shape[1]):
        columns = np.flatnonzero(chosen)
        if not len(columns):
            continue
        found = np.linalg.lstsq(design[:, columns], target, rcond=None)[0]
        error = float(((target - design[:, columns] @ found) ** 2).sum())
        if (found >= 0).all() and error < best_error:
            best, best_error = np.zeros(design.shape[1]), error
            best[columns] = found
    return best
