"""The payoff predictor: its features, its file, and its part in the policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_rows import Tree, batch, chain

from agentspec import ConfigError
from agentspec.scheduling.hybrid import FEATURES, HybridConfig, HybridPolicy, PayoffPredictor, draft_features


def predictor(bias: float = 1.5) -> PayoffPredictor:
    """A predictor with one hidden unit, which sees only the first feature."""
    f = len(FEATURES)
    hidden = np.zeros((f, 1))
    hidden[0] = 1.0
    return PayoffPredictor(np.zeros(f), np.ones(f), hidden, np.zeros(1), np.array([2.0]), bias, "by hand")


def test_features_of_a_tree_and_of_nothing() -> None:
    tree = Tree([7, 1, 2, 3], [-1, 0, 1, 0], [1.0, 0.6, 0.5, 0.3], [0, 1, 1, 1])
    features = draft_features(batch([tree, chain([], [])], match_lens=[5, 0]), np.array([1.5, 0.25]))
    np.testing.assert_allclose(
        features,
        [[np.log(6), np.log(2.4), np.log(4), 2, 0.6, 0.9, 1.5], [0, 0, 0, 0, 0, 0, 0.25]],
        rtol=1e-6,
    )


def test_predictions_are_the_networks_and_never_negative() -> None:
    x = np.zeros((2, len(FEATURES)))
    x[:, 0] = [0.5, -9.0]
    np.testing.assert_allclose(predictor().predict(x), [2 * np.tanh(0.5) + 1.5, 0.0])


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "payoff.json"
    predictor().save(path)
    loaded = PayoffPredictor.load(path)
    x = np.random.default_rng(0).normal(size=(5, len(FEATURES)))
    np.testing.assert_allclose(loaded.predict(x), predictor().predict(x))
    assert loaded.note == "by hand"


def test_the_default_is_of_this_version_and_promises_more_of_better_drafts() -> None:
    poor, good = chain([1], [0.1]), chain(range(1, 13), [0.98] * 12)
    features = draft_features(batch([poor, good], match_lens=[1, 40]), np.array([0.2, 6.0]))
    low, high = PayoffPredictor.default().predict(features)
    assert low < 1 and high > 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "agentspec-payoff-9"}, r"must be of the format agentspec-payoff-1 .* got agentspec-payoff-9"),
        ({"features": ["score"]}, r"got agentspec-payoff-1 with score in"),
        (
            {"hidden": [[1.0]]},
            r"hidden of a payoff predictor must be finite numbers of the shape \[7, 1\], got \[1, 1\]",
        ),
        ({"output": [float("nan")]}, r"output of a payoff predictor must be finite"),
        ({"scale": [0.0] * 7}, r"scale of a payoff predictor must be > 0"),
        ({"mean": "none"}, r"must be a file that `agentspec tune --payoff` wrote"),
        ({"output_bias": None}, r"must be a file that `agentspec tune --payoff` wrote"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "payoff.json"
    predictor().save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=message):
        PayoffPredictor.load(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "not json"])
def test_files_that_hold_something_else_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "payoff.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"payoff.json .*check the path"):
        HybridPolicy(HybridConfig(rule="payoff", payoff=str(path)))
    with pytest.raises(ConfigError, match=r"none.json .*check the path"):
        PayoffPredictor.load(tmp_path / "none.json")


def test_under_the_rule_payoff_the_prediction_decides_and_not_the_score(tmp_path: Path) -> None:
    path = tmp_path / "payoff.json"
    # The predictor expects 1.5 tokens of a draft without a match and 3.4 of one with a match of five tokens. The draft
    # model is worth about 2.2.
    predictor().save(path)
    auto = HybridPolicy(HybridConfig(rule="payoff", payoff=str(path)))
    for suffix, match_len, wanted in (
        (chain([1], [0.9]), 0, True),
        (chain([1], [0.01]), 5, False),
        (chain([], []), 5, True),
    ):
        assert auto.choose(["a"], batch([suffix], match_lens=[match_len]), np.ones(1, np.bool_)).rows.tolist() == [
            wanted
        ]
    fixed = HybridPolicy(HybridConfig(rule="payoff", payoff=str(path), tau=2.0))
    drafts = batch([chain([1], [0.9]), chain([1], [0.01]), chain([], [])], match_lens=[0, 5, 5])
    assert fixed.choose(["a", "b", "c"], drafts, np.ones(3, np.bool_)).rows.tolist() == [True, False, True]


def test_the_prediction_knows_what_the_requests_suffix_drafts_brought(tmp_path: Path) -> None:
    f = len(FEATURES)
    hidden = np.zeros((f, 1))
    hidden[FEATURES.index("running_accepted")] = 1.0
    path = tmp_path / "payoff.json"
    PayoffPredictor(np.zeros(f), np.full(f, 4.0), hidden, np.zeros(1), np.array([8.0]), 0.0).save(path)
    policy = HybridPolicy(HybridConfig(rule="payoff", payoff=str(path), tau=2.0))
    suffix = batch([chain([1, 2, 3, 4], [0.5] * 4)] * 2)
    fit = np.ones(2, np.bool_)
    for _ in range(10):
        policy.choose(["a", "b"], suffix, fit)
        drafts = policy.combine(["a", "b"], suffix, None, ~fit, np.full(2, 15, np.int32))
        policy.observe(["a", "b"], drafts, np.array([4, 0], np.int32), np.zeros((2, 5), np.int64))
    assert policy.choose(["a", "b"], suffix, fit).rows.tolist() == [False, True]
