"""Repeated tokens equal those that a search in plain lists finds."""

from __future__ import annotations

import numpy as np
import pytest
from every import every

from agentspec.analysis.measures.repetition import OutputRuns, repeated_tokens, shares
from agentspec.analysis.replay.runs import LENGTH as RUN


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
