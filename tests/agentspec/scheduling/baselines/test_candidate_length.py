"""The stopping rule of SpecDec++."""

from __future__ import annotations

import numpy as np
import pytest
from every import every

from agentspec import ConfigError
from agentspec.scheduling.baselines.candidate_length import candidate_length

#   p         0.9   0.8   0.5   0.9
#   1 - prod  0.1   0.28  0.64  0.676
P = [0.9, 0.8, 0.5, 0.9]


@every(("h", "length"), [(0, 1), (0.05, 1), (0.15, 2), (0.3, 3), (0.65, 4), (0.7, 4), (1, 4)])
def test_a_draft_stops_behind_the_token_that_exceeds_the_threshold(h: float, length: int) -> None:
    assert candidate_length(P, h) == length


def test_the_threshold_itself_is_not_exceeded() -> None:
    assert candidate_length([0.5, 0.5], 0.5) == 2


def test_each_draft_of_a_batch_stops_by_itself() -> None:
    batch = np.array([[1, 1, 1], [0.1, 1, 1], [1, 0.1, 1], [0, 0, 0]], np.float32)
    assert candidate_length(batch, 0.5).tolist() == [3, 1, 2, 1]
    assert candidate_length(batch.reshape(2, 2, 3), 0.5).tolist() == [[3, 1], [2, 1]]


def test_what_stands_behind_a_stop_does_not_count() -> None:
    assert candidate_length([0.1, 1, 1], 0.5) == candidate_length([0.1, 0, 0.3], 0.5) == 1


def test_no_tokens_no_candidates() -> None:
    assert candidate_length(np.zeros((2, 0)), 0.5).tolist() == [0, 0]


@pytest.mark.parametrize("h", [-0.1, 1.5, float("nan")])
def test_a_threshold_that_is_no_probability_is_refused(h: float) -> None:
    with pytest.raises(ConfigError, match="stopping threshold"):
        candidate_length(P, h)
