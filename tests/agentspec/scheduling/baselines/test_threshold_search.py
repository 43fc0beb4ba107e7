"""The search of a stopping threshold, against chains that are cut and priced one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from every import every

from agentspec.errors import ConfigError
from agentspec.scheduling.baselines.threshold_search import (
    DraftedChains,
    StepPrices,
    StopOutcome,
    fixed_outcomes,
    threshold_outcomes,
)
from agentspec.scheduling.costs.cost_model import StepCost


def drawn(draw: random.Random, number: int, longest: int) -> DraftedChains:
    """Chains whose tokens are accepted with the probability that is predicted."""
    probabilities = [[draw.choice([0.31, 0.71, 0.973]) for _ in range(longest)] for _ in range(number)]
    accepted = []
    for chances in probabilities:
        kept = 0
        while kept < longest and draw.random() < chances[kept]:
            kept += 1
        accepted.append(kept)
    return DraftedChains(np.array(probabilities), np.array(accepted))


def prices(draw: random.Random, *, graphs: bool) -> StepPrices:
    def cost() -> StepCost:
        return StepCost(draw.random() / 1e4, draw.random() / 10, draw.random())

    return StepPrices(cost(), cost(), draw.random(), rows=draw.randint(1, 4), context=200.0, graphs=graphs)


def priced(chains: DraftedChains, paid: StepPrices, lengths: list[int], longest: int) -> tuple[float, ...]:
    """(mean length, accept length, discard rate, verification rate, tokens a second), row by row."""
    seconds, tokens, discarded, rows = 0.0, 0, 0, paid.rows
    for length, accepted in zip(lengths, chains.accepted.tolist(), strict=True):
        kept = min(length, accepted)
        tokens, discarded = tokens + kept + 1, discarded + length - kept
        passes = longest if paid.graphs else length
        seconds += (
            passes * paid.drafter.seconds(rows * paid.context, rows)
            + paid.target.seconds(rows * paid.context, rows * (length + 1))
            + paid.rest
        ) / rows
    n = len(lengths)
    return sum(lengths) / n, tokens / n, discarded / tokens, n / tokens, tokens / seconds


def found(outcome: StopOutcome) -> tuple[float, ...]:
    return (
        outcome.length,
        outcome.accept_length,
        outcome.discard_rate,
        outcome.verification_rate,
        outcome.tokens_per_second,
    )


@every("graphs", [False, True])
@every("seed", range(5))
def test_every_rule_is_priced_as_by_hand(seed: int, graphs: bool) -> None:
    draw = random.Random(seed)
    longest = draw.randint(1, 6)
    chains, paid = drawn(draw, 30, longest), prices(draw, graphs=graphs)
    for outcome in threshold_outcomes(chains, paid):
        lengths = []
        for chances in chains.probabilities.tolist():
            path, length = 1.0, 0
            while length < longest and 1 - path <= outcome.threshold:  # type: ignore[operator]
                path, length = path * chances[length], length + 1
            lengths.append(max(length, 1))
        assert found(outcome) == pytest.approx(priced(chains, paid, lengths, longest))
    for length, outcome in enumerate(fixed_outcomes(chains, paid), 1):
        assert outcome.threshold is None
        assert found(outcome) == pytest.approx(priced(chains, paid, [length] * 30, length))


def test_dear_passes_want_a_low_threshold_and_cheap_ones_a_high() -> None:
    chains = drawn(random.Random(1), 500, 8)
    best = []
    for seconds in (1e-5, 0.02, 1.0):
        paid = StepPrices(StepCost(0, 0, 0.1), StepCost(0, 0, seconds), 0.0, 1, 100.0, graphs=False)
        best.append(max(threshold_outcomes(chains, paid), key=lambda one: one.tokens_per_second).threshold)
    assert best[0] > 0.95 and best[0] > best[1] > best[2]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("probabilities", "accepted"), [(np.zeros((0, 3)), np.zeros(0)), (np.zeros((2, 3)), np.zeros(3))]
)
def test_chains_that_do_not_fit(probabilities: np.ndarray, accepted: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="chains must be"):
        DraftedChains(probabilities, accepted.astype(np.int64))
