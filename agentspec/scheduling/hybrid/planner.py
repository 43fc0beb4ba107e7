"""Plans whether the passes of the draft model run in a step, and how wide the step is.

One comparison decides both (native/step/step_planner.h): of the tokens that suffix drafts alone bring and the seconds that
they take, and of those of their union with the draft model's drafts. A DraftingStep makes it one step ahead. A step that
waits for its suffix drafts makes it by a StepPlanner, with the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec.drafts import DraftBatch

_FIRST_PAUSE = 8
_LONGEST_PAUSE = 256
_TRIES = 4
"""Number of steps in a probe; a single step would be too noisy."""


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """What a plan is told of the draft model."""

    seconds: NDArray[np.float64]
    """[w], seconds of the passes, of a verification of each width that the step may have, and `extend`."""
    extend: NDArray[np.float64]
    """[w], seconds by which the draft model's reading of accepted tokens takes longer than in the latest step."""
    promised: NDArray[np.float64]
    """[b], accepted tokens that the draft model promises in each row."""
    fit: NDArray[np.bool_]
    """[b], whether the draft model can draft for the row."""
    passes: int
    """Number of tokens on the longest path of its trees."""
    must_pass: bool = False
    """Whether the passes run in every step."""
    cannot_pass: bool = False
    """Whether they run in none. Then the plan is one for suffix drafts alone, and tells what the passes would save in the
    rows that count as fit."""
    alone: bool = False
    """Whether suffix drafts are left out."""
    trees: bool = True
    """Whether both drafts of a row are united; if not, they are chains, and it verifies one of them."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """A plan."""

    passes: bool
    """Whether the draft model's passes run."""
    width: int
    reason: int
    """An index of goodput.REASONS."""
    tokens: float
    """Expected accepted and bonus tokens with suffix drafts alone."""
    seconds: float
    """Predicted seconds of the step."""
    tokens_with_model: float
    seconds_with_model: float
    saved: float
    """Seconds that the passes save, >= 0: what they add is worth the seconds that suffix drafts alone would need."""


class Speedup:
    """Tokens of the latest steps, over those that plain decoding would have brought in the same time."""

    def __init__(self, forgetting: float = 0.98) -> None:
        """`forgetting`: what a step counts one step later."""
        self._forgetting = forgetting
        self._tokens = self._plain = 0.0

    @property
    def value(self) -> float:
        """0 before the first step."""
        return self._tokens / self._plain if self._plain else 0.0

    def observe(self, tokens: float, plain_tokens: float, counted: float = 1.0) -> None:
        """Learns from a step that counts as this part of one."""
        kept = self._forgetting**counted
        self._tokens = kept * self._tokens + tokens
        self._plain = kept * self._plain + plain_tokens


def planning_numbers(
    widths: NDArray[np.int64],
    seconds: NDArray[np.float64],
    model: ModelNumbers | None,
    *,
    rest: float,
    least: tuple[float, float] = (0.0, 0.0),
    speedup: float,
    speedup_alone: float = 0.0,
    exponents: tuple[float, float],
) -> _core.PlanningNumbers:
    """What a plan of a step of b rows is made from.

    Args:
        widths: int64[w], those that the step may have, ascending from 1.
        seconds: float64[w], of a verification of each.
        model: None without a draft model.
        rest: Seconds of a step besides these.
        least: The fewest seconds of a whole step without and with the draft model's passes, which the host needs.
        speedup: `Speedup.value`.
        speedup_alone: The same of what suffix drafts alone would have brought; 0: unknown.
        exponents: They correct the estimates of suffix drafts, and of unions; see EstimateBias.
    """
    alone = seconds if model is None else seconds + model.extend
    return _core.PlanningNumbers(
        widths=widths,
        seconds=np.maximum(alone, least[0] - rest),
        with_model=None if model is None else np.maximum(model.seconds, least[1] - rest),
        rest=rest,
        speedup=speedup,
        speedup_alone=speedup_alone,
        exponent=exponents[0],
        exponent_united=exponents[1],
        promised=None if model is None else model.promised,
        fit=None if model is None else model.fit,
        passes=1 if model is None else model.passes,
        must_pass=model is not None and model.must_pass,
        cannot_pass=model is not None and model.cannot_pass,
        trees=model is None or model.trees,
    )


class StepPlanner:
    """Plans steps whose suffix drafts are known."""

    def __init__(self, suffix_only: _core.Goodput, with_model: _core.Goodput) -> None:
        """Both decide for this planner alone."""
        self._native = _core.StepPlanner(suffix_only=suffix_only, with_model=with_model)

    def plan(
        self, drafts: DraftBatch, rooms: NDArray[np.int32], context: int, numbers: _core.PlanningNumbers
    ) -> NextStep:
        """Plans the step of b rows that has these suffix drafts, with `rooms`, int32[b], as the maximum number of
        drafted nodes and `context` tokens in the KV cache over all rows. Raises ConfigError if the arguments are not
        of the same rows."""
        return NextStep(
            *self._native.plan(drafts.offsets, drafts.parents, drafts.estimates, rooms, float(context), numbers)
        )

    def foreseen(self, width: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Of the unions that the latest plan expected, cut to `width` nodes a row: the sums of each column's estimates,
        float64[width - 1], and the number of its nodes, int64[width - 1]."""
        estimated, sizes = np.zeros(width - 1), np.zeros(width - 1, np.int64)
        self._native.foreseen(width - 1, 1.0, estimated, sizes)
        return estimated, sizes


class Probing:
    """Chooses the steps that try the draft model although it is not expected to pay.

    The 8th such step starts a probe, then the 16th after that one, and so on. The pause doubles up to 256 steps, and is
    reset when the draft model runs because it pays.
    """

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE
        self._waited = 0
        self._tries = 0

    def restart(self) -> None:
        """Resets the pause, because the draft model pays again."""
        self._pause = _FIRST_PAUSE
        self._waited = self._tries = 0

    def next_step(self) -> bool:
        """Counts a step; returns whether to try the draft model in it."""
        if not self._tries:
            self._waited += 1
            if self._waited < self._pause:
                return False
            self._waited = 0
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._tries = _TRIES
        self._tries -= 1
        return True
