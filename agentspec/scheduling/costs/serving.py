"""The costs of serving besides verification: the scheduler, prefills, and the processes around it.

A server's scheduler alternates between prefills and decode steps. Other processes carry requests to it and answers
back. A request on an idle server takes `request_seconds`, a prefill, and a decode step for each further token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from agentspec.errors import ConfigError
from agentspec.scheduling.costs.cost_model import MeasuredPoint, StepCost, non_negative_least_squares


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """Totals of consecutive decode steps."""

    rows: int
    """Number of rows of each step."""
    steps: int
    context: float
    """Tokens in the KV cache, summed over steps."""
    batched: float
    """Tokens computed, summed over steps."""
    wall: float
    """Seconds from the beginning of the first step to the end of the last one."""
    outside: float
    """The part of `wall` outside verification, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCosts:
    """Costs of one kind of server, as its clients see them. Raises ConfigError if a time is negative or not finite."""

    request_seconds: float
    """Seconds of each request outside the scheduler: HTTP, detokenizing, messages between processes."""
    prefill: StepCost
    """The cost of a step that computes prompts, from the moment decoding stops until it goes on. N_batched counts
    computed tokens."""
    step: StepCost
    """The cost of a decode step outside verification; on a server that does not verify, of the whole step. N_batched
    counts the tokens of all rows, padding included."""
    overlap: bool = False
    """Whether a step begins before the results of the last one are processed. On a device that does not run steps in
    the background, an answer then waits for one more step."""
    by_rows: tuple[tuple[int, float], ...] = ()
    """Ascending batch sizes, each with the seconds that its steps take beyond `step`, negative if they take less.
    Interpolated between sizes. A plane cannot express a cost that a single row is spared."""
    measured: tuple[StepTotals, ...] = ()
    """The totals that `step` was fitted to; (): it was not fitted here."""

    def __post_init__(self) -> None:
        if not 0 <= self.request_seconds < math.inf:
            raise ConfigError(
                f"request_seconds must be seconds >= 0 and finite, got {self.request_seconds}; measure a new profile"
            )
        sizes = [rows for rows, _ in self.by_rows]
        if sizes != sorted(set(sizes)) or not all(math.isfinite(seconds) for _, seconds in self.by_rows):
            raise ConfigError(
                f"by_rows must be ascending batch sizes with finite seconds, got {self.by_rows}; measure a new profile"
            )

    def step_seconds(self, rows: int, context: float, batched: float) -> float:
        """Seconds of a decode step of `rows` rows outside verification, by `step` and `by_rows`."""
        seconds = self.step.seconds(context, batched)
        if self.by_rows:
            sizes, beyond = zip(*self.by_rows, strict=True)
            seconds += float(np.interp(rows, sizes, beyond))
        return max(seconds, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPoints:
    """Measurements of a server."""

    steps: tuple[StepTotals, ...]
    prefills: tuple[MeasuredPoint, ...]
    """Prompts of `width` tokens, with the seconds by which each delays a request that is being decoded."""
    alone: tuple[MeasuredPoint, ...]
    """The same prompts on an idle server, for one token each, with the seconds from sending to the answer."""
    overlap: bool


def fit_serving_costs(points: ServingPoints) -> ServingCosts:
    """Fits the costs to the measurements. No coefficient is negative.

    1. Steps: the plane of SmartSpec's equation 7, by least squares of errors relative to `wall`, and the mean residual
       of each batch size.
    2. Prefills: a line over computed tokens, by least squares of relative errors.
    3. Requests: the median of the seconds that a request takes on an idle server beyond its prefill. They are spent
       outside the scheduler.

    Raises ConfigError if there are too few points.
    """
    if len({point.batched for point in points.prefills}) < 2 or not points.alone or not points.steps:
        raise ConfigError(
            f"serving costs need decode steps and prefills of two lengths at least, got {len(points.steps)} and "
            f"{len(points.prefills)} points; measure more"
        )
    seconds = np.array([point.seconds for point in points.prefills])
    design = np.array([(point.batched, 1.0) for point in points.prefills])
    gamma, delta = non_negative_least_squares(design / seconds[:, None], np.ones(len(seconds))).tolist()
    prefill = StepCost(0.0, gamma, delta)
    walls = np.array([total.wall for total in points.steps])
    design = np.array([(total.context, total.batched, total.steps) for total in points.steps], np.float64)
    outside = np.array([total.outside for total in points.steps])
    step = StepCost(*non_negative_least_squares(design / walls[:, None], outside / walls).tolist())
    left = (outside - design @ np.array([step.alpha, step.gamma, step.delta])) / design[:, 2]
    rows = np.array([total.rows for total in points.steps])
    by_rows = tuple((size, float(left[rows == size].mean())) for size in sorted(set(rows.tolist())))
    waits = [point.seconds - prefill.seconds(0, point.batched) for point in points.alone]
    return ServingCosts(
        request_seconds=max(0.0, float(np.median(waits))),
        prefill=prefill,
        step=step,
        overlap=points.overlap,
        by_rows=by_rows,
        measured=points.steps,
    )
