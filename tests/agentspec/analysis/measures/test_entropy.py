"""Entropy equals one of a dictionary of contexts. Repeated tokens equal those that a search in lists finds."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from every import every
from numpy.typing import NDArray

from agentspec.analysis.measures.entropy import LENGTH_BY_ENTROPY, LengthByEntropy, output_entropy
from agentspec.analysis.measures.repetition import OutputRuns, repeated_tokens, shares
from agentspec.analysis.replay.runs import LENGTH as RUN


def by_dictionary(outputs: list[np.ndarray], depth: int) -> float | None:
    followers: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    writers: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for number, output in enumerate(outputs):
        tokens = output.tolist()
        for end in range(len(tokens)):
            for length in range(1, min(depth, end) + 1):
                followers[tuple(tokens[end - length : end])][tokens[end]] += 1
                writers[tuple(tokens[end - length : end])].add(number)
    weighted = total = 0.0
    for context, counts in followers.items():
        n = sum(counts.values())
        if len(writers[context]) >= 2:
            weighted -= sum(c * math.log2(c / n) for c in counts.values())
            total += n
    return weighted / total if total else None


@every("seed", range(6))
def test_entropy_is_the_weighted_mean_over_contexts_of_two_outputs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs = [rng.integers(0, 9, rng.integers(0, 20)).astype(np.int32) for _ in range(8)]
    assert output_entropy(outputs, 3).value == pytest.approx(by_dictionary(outputs, 3))


@pytest.mark.parametrize("outputs", [[], [np.zeros(0, np.int32)], [np.zeros(9, np.int32)]])
def test_one_output_has_no_entropy(outputs: list[np.ndarray]) -> None:
    entropy = output_entropy(outputs)
    assert entropy.value is None
    assert entropy.interval([""] * len(outputs)) is None


def test_interval_is_wider_where_sessions_differ() -> None:
    rng = np.random.default_rng(0)
    alike = [rng.integers(0, 8, 200).astype(np.int32) for _ in range(12)]
    mixed = [np.tile(np.arange(10, 20, dtype=np.int32), 20) if i % 2 else output for i, output in enumerate(alike)]
    widths = []
    for outputs in (alike, mixed):
        interval = output_entropy(outputs).interval([str(i) for i in range(12)])
        assert interval is not None and interval["low"] <= interval["mean"] <= interval["high"]
        widths.append(interval["high"] - interval["low"])
    assert widths[1] > 2 * widths[0]


def fitted(entropies: NDArray[np.float64], lengths: NDArray[np.float64]) -> LengthByEntropy:
    n, logarithms = len(entropies), np.log(lengths)
    (slope, intercept), residuals, *_ = np.polyfit(entropies, logarithms, 1, full=True)
    spread = n * np.var(entropies)
    return LengthByEntropy(intercept, slope, float(np.sqrt(residuals[0] / (n - 2))), entropies.mean(), spread, n)


@pytest.mark.parametrize("state", LENGTH_BY_ENTROPY)
def test_the_line_is_that_of_the_measured_sets(state: str) -> None:
    file = Path(__file__).parents[4] / "evals" / "results" / "report" / "bench.json"
    rows = [row for row in json.loads(file.read_text())["ranking"]["rows"] if row["kind"] != "staged"]
    found = fitted(*(np.array([row[key] for row in rows]) for key in ("entropy", state)))
    assert astuple(found) == pytest.approx(astuple(LENGTH_BY_ENTROPY[state]), abs=1e-4)


def test_nine_of_ten_drawn_sets_are_in_their_interval() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        entropies = rng.uniform(1.0, 2.5, 12)
        lengths = np.exp(2.5 - 0.6 * entropies + rng.normal(0.0, 0.2, 12))
        # Eleven sets are known, and the last one is new.
        expected = fitted(entropies[:-1], lengths[:-1]).expected(entropies[-1])
        inside += expected["low"] <= lengths[-1] <= expected["high"]
    assert inside / 2000 == pytest.approx(0.9, abs=0.03)


def by_search(output: list[int], texts: list[list[int]]) -> list[bool]:
    covered = [False] * len(output)
    for start in range(len(output) - RUN + 1):
        run = output[start : start + RUN]
        if any(run == text[i : i + RUN] for text in texts for i in range(len(text) - RUN + 1)):
            covered[start : start + RUN] = [True] * RUN
    return covered


@every("seed", range(6))
def test_tokens_are_dealt_to_where_they_stood_before(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pool = rng.integers(0, 50, 60)

    def text() -> np.ndarray:
        parts = [pool[i : i + 12] if rng.random() < 0.5 else rng.integers(0, 50, 6) for i in rng.integers(0, 45, 5)]
        return np.concatenate(parts).astype(np.int32)

    outputs, prompt = [text() for _ in range(4)], text()
    own = by_search(outputs[0].tolist(), [prompt.tolist()])
    other = by_search(outputs[0].tolist(), [output.tolist() for output in outputs[1:]])
    expected = [
        sum(own[i] == a and other[i] == b for i in range(len(own))) for a, b in ((1, 0), (0, 1), (1, 1), (0, 0))
    ]
    assert repeated_tokens(outputs[0], prompt, OutputRuns(outputs)).tolist() == expected


def test_what_an_output_repeats_of_itself_does_not_count() -> None:
    output = np.tile(np.arange(RUN, dtype=np.int32), 4)
    assert repeated_tokens(output, np.zeros(1, np.int32), OutputRuns([output])).tolist() == [0, 0, 0, len(output)]


def test_shares_sum_to_one_and_are_none_of_nothing() -> None:
    found = shares(np.array([1, 2, 3, 1]))
    assert found is not None and sum(found.values()) == pytest.approx(1.0, abs=1e-5)
    assert shares(np.zeros(4, np.int64)) is None
