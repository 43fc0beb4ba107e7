"""The weights of estimates are read and written, and bad ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agentspec import ConfigError, EngineConfig, _core
from agentspec.estimates import NUM_WEIGHTS, Estimates


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    weights = np.zeros(NUM_WEIGHTS, np.float32)
    weights[[0, 7, NUM_WEIGHTS - 1]] = [0.5, -1.25, 2.0]
    path = tmp_path / "estimates.json"
    Estimates(weights, "three of them").save(path)
    loaded = Estimates.load(path)
    np.testing.assert_array_equal(loaded.weights, weights)
    assert loaded.note == "three of them"


def test_corpora_are_weighed_as_the_global_index_where_nothing_was_fitted_for_them() -> None:
    def functions(estimates: Estimates) -> NDArray[np.float32]:
        per_slot = (_core.NUM_SLOTS, -1, _core.NUM_RECENCIES, _core.NUM_KNOTS)
        return estimates.weights[_core.NUM_BIASES :].reshape(per_slot)

    fitted = Estimates(np.zeros(NUM_WEIGHTS, np.float32), "a note")
    functions(fitted)[_core.GLOBAL_SLOT, 2, :, 5] = [1, 2, 3, 4, 5, 6, 7, 8]
    functions(fitted)[_core.GLOBAL_SLOT + 1, 0, 7, 0] = 8
    completed = fitted.with_corpora()
    corpora = functions(completed)[_core.CORPUS_SLOT :]
    assert (corpora[0, 2, :, 5] == 4.5).all()
    assert (corpora[1, 0, :, 0] == 1).all()
    assert np.count_nonzero(corpora) == 2 * _core.NUM_RECENCIES
    assert completed.note == "a note"
    np.testing.assert_array_equal(functions(completed)[: _core.CORPUS_SLOT], functions(fitted)[: _core.CORPUS_SLOT])
    assert not functions(fitted)[_core.CORPUS_SLOT :].any(), "what was given stays"

    functions(fitted)[_core.CORPUS_SLOT, 9, 0, 0] = 0.5
    assert fitted.with_corpora() is fitted, "they were fitted with corpora"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(NUM_WEIGHTS), rf"float32\[{NUM_WEIGHTS}\], got float64\[{NUM_WEIGHTS}\]"),
        (np.zeros(3, np.float32), r"got float32\[3\]; fit them"),
        (np.full(NUM_WEIGHTS, np.nan, np.float32), r"must be finite"),
        ([0.0], r"got list"),
    ],
)
def test_weights_of_another_kind_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(estimates=Estimates(weights))


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"num_weights": NUM_WEIGHTS + 1},
        {"indices": [NUM_WEIGHTS], "values": [1.0]},
        {"indices": [0, 1]},
        {"values": ["high"]},
        {"values": [float("inf")]},
    ],
    ids=str,
)
def test_files_of_another_kind_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    content = {"format": 1, "note": "", "num_weights": NUM_WEIGHTS, "indices": [0], "values": [1.0]}
    path = tmp_path / "estimates.json"
    path.write_text(json.dumps(content | changes))
    with pytest.raises(ConfigError, match=r"; (check the path|fit them again)"):
        Estimates.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json"):
        Estimates.load(tmp_path / "none.json")
