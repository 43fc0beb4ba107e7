"""Finds the threshold h of SpecDec++ with which a draft model's drafts cost least, from chains that it drafted to the end.

Pattern: every chain is cut where the rule would have ended it, and priced by the times of both models. The chains begin
where whole chains were accepted to. A shorter draft would begin some rounds elsewhere, which is neglected.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ConfigError
from agentspec.scheduling.baselines.candidate_length import candidate_length
from agentspec.scheduling.costs.cost_model import StepCost

THRESHOLDS = (
    *(0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95),
    *(0.98, 0.99, 1.0),
)
"""The values that are tried. 1 never ends a draft early."""


@dataclass(frozen=True, slots=True)
class DraftedChains:
    """n chains of K tokens each, and what became of them. Raises ConfigError if there are no chains, or the arrays do
    not fit."""

    probabilities: NDArray[np.float64]
    """[n, K], the predicted probability that a token is accepted if all before it are."""
    accepted: NDArray[np.int64]
    """[n], number of tokens that were accepted."""

    def __post_init__(self) -> None:
        shape = self.probabilities.shape
        if len(shape) != 2 or not all(shape) or self.accepted.shape != shape[:1]:
            raise ConfigError(
                f"chains must be [n, K] with n and K from 1 and have n accepted lengths, got {shape} and "
                f"{self.accepted.shape}; record more calls"
            )


@dataclass(frozen=True, slots=True)
class StepPrices:
    """Seconds of a step with `rows` rows of `context` tokens each."""

    target: StepCost
    drafter: StepCost
    rest: float
    """Seconds of a step besides both models."""
    rows: int
    context: float
    graphs: bool
    """Whether all passes run, because they are captured in a graph."""

    def of_rows(self, lengths: NDArray[np.int64], longest: int) -> NDArray[np.float64]:
        """Each row's share of a step in which all rows draft as many tokens as it does, in `lengths`, of at most
        `longest`."""
        passes = np.full(len(lengths), longest) if self.graphs else lengths
        context, each = self.rows * self.context, self.drafter.seconds(self.rows * self.context, self.rows)
        verified = self.target.alpha * context + self.target.gamma * self.rows * (lengths + 1) + self.target.delta
        seconds: NDArray[np.float64] = (verified + passes * each + self.rest) / self.rows
        return seconds


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """What a rule would have made of the chains."""

    threshold: float | None
    """h; None for drafts of a fixed length."""
    length: float
    """Mean number of drafted tokens."""
    accept_length: float
    """Mean number of tokens of a round, the target's own one included."""
    discard_rate: float
    """Drafted tokens that were not accepted, of all generated ones (SpecDec++, equation 2.3)."""
    verification_rate: float
    """Verifications, of all generated tokens (the same)."""
    tokens_per_second: float
    """Of one row."""


def threshold_outcomes(chains: DraftedChains, prices: StepPrices) -> list[StopOutcome]:
    """What each of THRESHOLDS would have made of the chains."""
    return [_outcome(chains, prices, candidate_length(chains.probabilities, h), h) for h in THRESHOLDS]


def fixed_outcomes(chains: DraftedChains, prices: StepPrices) -> list[StopOutcome]:
    """What drafts of 1, 2, ..., K tokens would have made of the chains, each by as many passes as it has tokens."""
    number, longest = chains.probabilities.shape
    return [_outcome(chains, prices, np.full(number, length), None) for length in range(1, longest + 1)]


def _outcome(
    chains: DraftedChains, prices: StepPrices, lengths: NDArray[np.int64], threshold: float | None
) -> StopOutcome:
    kept = np.minimum(lengths, chains.accepted)
    # A server with shorter drafts of one length also captures fewer passes.
    longest = chains.probabilities.shape[1] if threshold is not None else int(lengths.max())
    tokens = float((kept + 1).sum())
    return StopOutcome(
        threshold=threshold,
        length=float(lengths.mean()),
        accept_length=tokens / len(lengths),
        discard_rate=float((lengths - kept).sum()) / tokens,
        verification_rate=len(lengths) / tokens,
        tokens_per_second=tokens / float(prices.of_rows(lengths, longest).sum()),
    )
