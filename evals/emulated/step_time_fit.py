"""Step times of a model on the machine that serves it, fitted to forwards that were timed there.

    seconds = fixed + per_row * rows + per_token * tokens + per_context * context

Each kind of forward has its own fit, by non-negative least squares of relative errors, so that short forwards count as
much as long ones. The fit is then scaled so that the sum of all seconds is the measured one, because sums determine
tokens a second. The slowest hundredth of each kind is excluded from the fit, but not from the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ConfigError
from agentspec.evals.emulated.forward_timer import KINDS, TimedForward
from agentspec.integrations.emulated_device.models.forward_times import ForwardTime
from agentspec.integrations.emulated_device.models.step_times import StepTimes

LEAST_FORWARDS = 30
_SLOWEST = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The step times of one kind of forward, and the quality of the fit."""

    time: ForwardTime
    forwards: int
    median_error: float
    """Relative error of a forward."""


def fitted(name: str, forwards: Sequence[TimedForward]) -> tuple[StepTimes, dict[str, Fit]]:
    """Step times for a blocking device, and the fit of each kind of forward that ran.

    A kind that never ran gets the time of the target and has no fit.

    Args:
        name: Of the step times.
        forwards: The timed forwards.

    Raises:
        ConfigError: There are too few forwards of the target or of prefills.
    """
    fits = {}
    for kind in KINDS:
        some = [one for one in forwards if one.kind == kind and one.rows]
        if len(some) >= LEAST_FORWARDS:
            fits[kind] = _fit(some)
    for kind in ("target", "prefill"):
        if kind not in fits:
            raise ConfigError(
                f"at least {LEAST_FORWARDS} forwards of kind {kind} must be timed; ask for more --requests"
            )
    times = {kind: (fits.get(kind) or fits["target"]).time for kind in KINDS}
    found = StepTimes(
        name=name,
        blocking=True,
        target_pass=times["target"],
        prefill_pass=times["prefill"],
        draft=times["draft"],
        extend=times["extend"],
        note="fitted by agentspec bench emulation to forwards that were timed on the machine that served",
    )
    return found, fits


def predicted(times: StepTimes, forward: TimedForward) -> float:
    """Seconds of a forward by the step times."""
    rows, tokens, context = forward.rows, forward.tokens, forward.context
    return {
        "target": lambda: times.target(rows, tokens, context),
        "prefill": lambda: times.prefill(tokens, context, rows),
        "draft": lambda: times.draft_pass(tokens, context),
        "extend": lambda: times.draft_extend(tokens, context, rows),
    }[forward.kind]()


def fit_report(fits: Mapping[str, Fit]) -> list[dict[str, Any]]:
    """Rows for tables and JSON: coefficients in microseconds."""
    return [
        {
            "kind": kind,
            "forwards": fit.forwards,
            "fixed_us": round(fit.time.fixed * 1e6, 1),
            "per_row_us": round(fit.time.per_row * 1e6, 2),
            "per_token_us": round(fit.time.per_token * 1e6, 2),
            "per_context_us": round(fit.time.per_context * 1e6, 4),
            "median_error": round(fit.median_error, 4),
        }
        for kind, fit in fits.items()
    ]


def _fit(forwards: Sequence[TimedForward]) -> Fit:
    seconds = np.array([one.seconds for one in forwards])
    columns = _columns(forwards)
    ratios = seconds / (columns @ _solved(columns, seconds))
    kept = ratios <= np.quantile(ratios, 1 - _SLOWEST)
    coefficients = _solved(columns[kept], seconds[kept])
    coefficients *= seconds.sum() / (columns @ coefficients).sum()
    errors = np.abs(columns @ coefficients - seconds) / seconds
    fixed, per_row, per_token, per_context = map(float, coefficients)
    time = ForwardTime(fixed=fixed, per_row=per_row, per_token=per_token, per_context=per_context)
    return Fit(time=time, forwards=len(forwards), median_error=float(np.median(errors)))


def _solved(columns: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The non-negative coefficients with the least relative errors."""
    from scipy.optimize import nnls

    found: NDArray[np.float64] = nnls(columns / seconds[:, None], np.ones(len(seconds)))[0]
    return found


def _columns(forwards: Sequence[TimedForward]) -> NDArray[np.float64]:
    """1, rows, tokens and context of each forward, as `predicted` reads them."""
    rows = []
    for one in forwards:
        context: float = one.context
        if one.kind in ("prefill", "extend"):
            context = max(context - one.tokens / 2, one.tokens / 2)
        # The step time of a draft pass is computed from its tokens, not its rows.
        rows.append((1.0, one.tokens if one.kind == "draft" else one.rows, one.tokens, context))
    return np.array(rows, np.float64)
