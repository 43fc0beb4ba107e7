"""Training of payoff predictors, on drafts whose payoff is known."""

from __future__ import annotations

import numpy as np
import pytest

from agentspec import ConfigError, EngineConfig
from agentspec.analysis.replay import Call
from agentspec.analysis.replay.payoff_training import Payoffs, collect_payoffs, fit_payoff, payoff_errors
from agentspec.scheduling.hybrid import FEATURES

pytest.importorskip("scipy", reason="`make setup` installs scipy")


def call(output: list[int]) -> Call:
    return Call("s", "", "", (np.array([9], np.int32),), np.array(output, np.int32))


def payoffs(n: int, seed: int) -> Payoffs:
    """Drafts of which 8 tokens are accepted if the match is long and the running mean is high, and none otherwise. The
    score promises 2 tokens for every draft."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, len(FEATURES)))
    accepted = np.where((features[:, 0] > 0) & (features[:, 6] > 0), 8.0, 0.0)
    return Payoffs(features, np.full(n, 2.0), accepted)


def test_drafts_are_collected_with_what_became_of_them() -> None:
    # From the sixth token on the output repeats itself without a change, and drafts come from the repeat.
    found = collect_payoffs([call([1, 2, 3, 4, 5] * 4)], EngineConfig(max_draft_tokens=4))
    assert found.features.shape == (len(found.accepted), len(FEATURES))
    assert found.accepted.max() == 4.0
    assert found.features[0, 6] == 0.0, "nothing was accepted before the first draft"
    assert found.features[-1, 6] > 0.0


def test_a_warm_engine_drafts_from_the_first_step() -> None:
    config = EngineConfig(max_draft_tokens=4)
    cold = call([1, 2, 3, 4, 5, 6, 7, 8])
    with pytest.raises(ConfigError, match=r"nothing was drafted"):
        collect_payoffs([cold], config)
    assert collect_payoffs([cold], config, warm=[cold]).accepted[0] > 0


def test_the_network_learns_what_scores_do_not_say() -> None:
    predictor = fit_payoff([payoffs(1500, 0)], "made up")
    errors = payoff_errors(predictor, payoffs(500, 1))
    assert errors.rmse < 0.4 * errors.score_rmse
    assert errors.mae < 0.4 * errors.score_mae
    assert errors.drafts == 500 and predictor.note == "made up"


def test_each_set_counts_alike() -> None:
    few, many = payoffs(40, 2), payoffs(400, 3)
    flat = [Payoffs(np.zeros_like(p.features), p.scores, np.full(len(p.accepted), v)) for p, v in ((few, 1), (many, 3))]
    assert fit_payoff(flat, "").predict(np.zeros((1, len(FEATURES))))[0] == pytest.approx(2.0, abs=0.01)
