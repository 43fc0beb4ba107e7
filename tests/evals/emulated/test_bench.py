"""The emulation bench without servers: fits of timed forwards, rows and their table."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec.errors import ConfigError
from agentspec.evals.emulated.forward_timer import TimedForward
from agentspec.evals.emulated.step_time_fit import fitted


def forwards(kind: str, number: int = 400, noise: float = 0.02) -> list[TimedForward]:
    """Forwards of 2 ms, plus 0.2 a row, 0.1 a token and 0.001 a token of context; 1 in 200 is 100 times as slow."""
    rng = np.random.default_rng(len(kind))
    found = []
    for i in range(number):
        rows = int(rng.integers(1, 17))
        tokens, context = rows * int(rng.integers(1, 17)), rows * int(rng.integers(100, 600))
        if kind == "draft":
            tokens = rows
        read = context - tokens / 2 if kind in ("prefill", "extend") else context
        seconds = 2e-3 + 2e-4 * rows + 1e-4 * tokens + 1e-6 * read
        slow = 100 if i % 200 == 199 else 1
        found.append(TimedForward(kind, rows, tokens, context, seconds * slow * float(rng.normal(1, noise))))
    return found


def test_fits_find_the_coefficients_and_the_sum_of_all_seconds() -> None:
    some = [*forwards("target", noise=0.0)[:199], *forwards("prefill", noise=0.0)[:199]]
    times, fits = fitted("here", some)
    assert times.blocking and set(fits) == {"target", "prefill"}
    time = times.target_pass
    assert (time.fixed, time.per_row, time.per_token, time.per_context) == pytest.approx(
        (2e-3, 2e-4, 1e-4, 1e-6), rel=0.02
    )
    # Kinds that never ran take the target's time.
    assert times.draft == times.target_pass


def test_too_few_forwards_are_refused() -> None:
    with pytest.raises(ConfigError, match="--requests"):
        fitted("here", forwards("target", 10))
