"""Estimates follow what verification accepts. Their weights are read and written, and bad ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_texts import as_bytes, ids
from numpy.typing import NDArray

from agentspec import ConfigError, Engine, EngineConfig, _core
from agentspec.estimates import NUM_WEIGHTS, Estimates

ONE_PLACE = ids(1, 2, 3, 9, 1, 2)  # 3 has followed 1 2 once
TWO_PLACES = ids(1, 2, 3, 8, 1, 2, 4, 9, 1, 2)  # 3 and 4 have followed 1 2 once each


def test_each_of_two_continuations_learns_its_own_outcome() -> None:
    """The later continuation is always right. The two differ only in how recent they are."""
    engine = Engine(EngineConfig(min_token_prob=0.0))
    for step in range(300):
        engine.open(f"{step}", TWO_PLACES)
        engine.draft([f"{step}"])
        engine.extend(f"{step}", ids(4))
    engine.open("asked", TWO_PLACES)
    row = engine.draft(["asked"]).row(0)
    found = {int(t): float(e) for t, p, e in zip(row.tokens, row.parents, row.estimates, strict=True) if p == 0}
    assert found[4] > 0.8
    assert found[3] < 0.2


@pytest.mark.parametrize("changes", [{"learning_rate": 0.0}, {"rule": "suffixdecoding"}], ids=["rate 0", "plain rule"])
def test_weights_are_kept_where_nothing_learns(changes: dict[str, object]) -> None:
    engine = Engine(EngineConfig(**changes))  # type: ignore[arg-type]
    before = engine.estimates().weights
    for step in range(10):
        engine.open(f"{step}", ONE_PLACE)
        engine.draft([f"{step}"])
        engine.extend(f"{step}", ids(5))
    np.testing.assert_array_equal(engine.estimates().weights, before)
    np.testing.assert_array_equal(before, Estimates.default().with_corpora().weights)


def test_nothing_is_learned_from_what_was_not_drafted() -> None:
    engine = Engine()
    before = engine.estimates().weights
    engine.open("a", ONE_PLACE)
    engine.extend("a", ids(5, 1, 2))
    engine.draft(["a"], max_tokens=0)
    engine.extend("a", ids(5))
    np.testing.assert_array_equal(engine.estimates().weights, before)
    engine.draft(["a"])
    engine.extend("a", ids(1))
    changed = engine.estimates().weights
    # The engine learns from each draft only once.
    engine.extend("a", ids(2))
    np.testing.assert_array_equal(engine.estimates().weights, changed)


def test_learned_estimates_can_be_handed_on() -> None:
    engine = Engine()
    for step in range(50):
        engine.open(f"{step}", ONE_PLACE)
        engine.draft([f"{step}"])
        engine.extend(f"{step}", ids(5))
    heir = Engine(EngineConfig(estimates=engine.estimates()))
    assert len(heir.estimates().weights) == NUM_WEIGHTS
    np.testing.assert_array_equal(heir.estimates().weights, engine.estimates().weights)
    for one in (engine, heir):
        one.open("asked", TWO_PLACES)
    assert as_bytes(engine.draft(["asked"])) == as_bytes(heir.draft(["asked"]))


def test_trials_tell_what_was_weighed_and_what_came() -> None:
    engine = Engine(EngineConfig(min_token_prob=0.0))
    engine.open("a", TWO_PLACES)
    row = engine.draft(["a"]).row(0)
    trials = engine.trials("a", ids(4, 9, 7))
    assert trials.weights.shape == trials.fractions.shape == (len(trials.estimates), trials.weights.shape[1])
    # The trials are 3 and 4 after 1 2, then 9, and then 1, where the text really goes on with 7.
    assert sorted(trials.accepted.tolist()) == [0, 0, 1, 1]
    first_two = {float(e) for e, p in zip(row.estimates, row.parents, strict=True) if p == 0}
    assert set(trials.estimates[:2].tolist()) == first_two
    assert (trials.weights[:, -1] >= 0).all()
    used = trials.weights[:, :-1] >= 0
    assert ((trials.fractions >= 0.0) & (trials.fractions <= 1.0)).all()
    assert used.any(axis=1).all()
    assert trials.weights.max() < NUM_WEIGHTS
    # A node's interpolated weights add up to the log odds of its probability. Siblings that exceed 1 are scaled down.
    weights = engine.estimates().weights.astype(np.float64)
    low = np.where(used, trials.weights[:, :-1], 0)
    parts = weights[low] * (1.0 - trials.fractions[:, :-1]) + weights[low + 1] * trials.fractions[:, :-1]
    logits = np.where(used, parts, 0.0).sum(axis=1) + weights[trials.weights[:, -1]]
    raw = 1.0 / (1.0 + np.exp(-logits[:2]))
    np.testing.assert_allclose(trials.estimates[:2], raw / max(raw.sum(), 1.0), rtol=1e-5)


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
