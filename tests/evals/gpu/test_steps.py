from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from draft_states import profile

from agentspec.evals.gpu.sizes import SIZES
from agentspec.evals.gpu.steps import compare_predictions, profile_file
from agentspec.evals.gpu.trip import Trip
from agentspec.evals.gpu.work import RecordedCall, Work


def repeated(number: int) -> tuple[RecordedCall, ...]:
    """Calls with different prompts and the same answer."""
    answer = np.arange(3, 43, dtype=np.int32)
    return tuple(RecordedCall(np.full(9, 100 + i, np.int32), answer, True) for i in range(number))


def test_predictions_stand_beside_what_was_measured(tmp_path: Path) -> None:
    trip, size = Trip(data=tmp_path, out=tmp_path), SIZES["llama-8b"]
    profile().save(profile_file(trip, size))
    work = Work("sql", repeated(3), {1: repeated(2), 16: repeated(20)})
    replayed = {"part": "replay", "size": size.name, "backend": "triton", "trace": "sql", "tokens_per_second": 100.0}
    measured = [
        {**replayed, "system": "none", "concurrency": 1},
        {**replayed, "system": "suffix", "concurrency": 1},
        {**replayed, "system": "suffix", "concurrency": 16},
        # Nothing is predicted for the following records.
        {**replayed, "system": "ngram", "concurrency": 1},
        {**replayed, "system": "suffix", "concurrency": 4},
        {**replayed, "system": "suffix", "concurrency": 1, "error": "failed"},
        {"part": "parity", "dtype": "float32", "system": "suffix"},
    ]
    rows = list(compare_predictions(trip, size, [work], measured))
    assert [(row["system"], row["concurrency"]) for row in rows] == [("none", 1), ("suffix", 1), ("suffix", 16)]
    plain, one, many = (row["predicted_tokens_per_second"] for row in rows)
    # A step of the profile takes slightly more than 10 ms. The repeated answer is drafted as a whole.
    assert plain == pytest.approx(100.0, rel=0.1)
    assert one > 3 * plain and many > 4 * one
    assert rows[0]["error_of_prediction"] == pytest.approx(plain / 100.0 - 1.0, abs=1e-3)
