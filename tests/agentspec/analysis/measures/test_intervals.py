"""Intervals hold the figure of the next log, and narrow as sessions are added."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from agentspec.analysis.measures.intervals import quantile, ratio, ratio_interval

Items = tuple[NDArray[np.float64], NDArray[np.float64], list[str]]


def drawn(sessions: int, each: int, rng: np.random.Generator, spread: float = 0.3) -> Items:
    """Tokens and steps of sessions that have accept lengths of their own, and lengths that differ a lot."""
    lengths = np.repeat(3.0 * np.exp(spread * rng.standard_normal(sessions)), each)
    steps = np.ceil(rng.lognormal(3.0, 0.8, sessions * each))
    tokens = steps * lengths * np.exp(0.4 * rng.standard_normal(sessions * each))
    return tokens, steps, [str(i // each) for i in range(sessions * each)]


@pytest.mark.parametrize(("sessions", "each"), [(5, 6), (40, 4)])
def test_intervals_hold_the_ratio_of_another_log(sessions: int, each: int) -> None:
    rng = np.random.default_rng(0)
    held = []
    for _ in range(400):
        interval = ratio_interval(*drawn(sessions, each, rng))
        tokens, steps, _ = drawn(sessions, each, rng)
        assert interval is not None
        held.append(interval["low"] <= tokens.sum() / steps.sum() <= interval["high"])
    assert 0.85 < np.mean(held) < 0.98


def test_intervals_of_a_few_calls_hold_the_ratio_of_a_whole_log() -> None:
    rng = np.random.default_rng(1)
    held = []
    for _ in range(400):
        tokens, steps, sessions = drawn(30, 40, rng, spread=0.05)
        chosen = rng.permutation(len(tokens))[:90]
        found = ratio(tokens[chosen], steps[chosen], [sessions[i] for i in chosen], 90 / len(tokens))
        whole = drawn(30, 40, rng, spread=0.05)
        assert found is not None
        interval = found.interval()
        held.append(interval["low"] <= whole[0].sum() / whole[1].sum() <= interval["high"])
    assert 0.84 < np.mean(held) < 0.97


def test_intervals_narrow_as_sessions_are_added() -> None:
    widths = []
    for sessions in (10, 40, 160):
        interval = ratio_interval(*drawn(sessions, 4, np.random.default_rng(2)))
        assert interval is not None
        widths.append(math.log(interval["high"] / interval["low"]))
    assert widths[0] > 1.5 * widths[1] > 2.25 * widths[2]


def test_one_session_is_taken_as_its_items() -> None:
    tokens, steps, _ = drawn(8, 1, np.random.default_rng(3))
    assert ratio_interval(tokens, steps, ["s"] * 8) == ratio_interval(tokens, steps, list("abcdefgh"))
    assert ratio_interval(tokens, np.zeros(8), ["s"] * 8) is None


@pytest.mark.parametrize(("freedom", "expected"), [(2, 2.920), (5, 2.015), (30, 1.697), (1e9, 1.645)])
def test_quantiles_are_those_of_students_t(freedom: float, expected: float) -> None:
    assert quantile(freedom) == pytest.approx(expected, rel=0.015)
