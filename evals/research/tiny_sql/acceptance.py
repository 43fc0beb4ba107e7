"""Trains acceptance-prediction heads (SpecDec++, section 3.3) on chains of the tiny drafters.

Notation: X is what the target writes, Y what the drafter drafts, Z what it is fed. A chain starts at some token of X. A
random share r of its later inputs are X's tokens, and the rest are its own, so that Z mixes both. The label of Y_j is
whether it equals X_j. Wherever Z and X agree so far, that is acceptance given that everything before it is accepted.
The paper takes Y from states over X and judges it by states over Z. Here both come from the chain itself, because an
EAGLE head is fed its own states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from agentspec.evals.research.tiny_sql.chains import Drafter, Text, accepted, draft_chains
from agentspec.integrations.sglang.drafting.acceptance_head import FARTHEST_LOGIT, AcceptanceConfig, AcceptanceHead


@dataclass(frozen=True)
class AcceptanceTraining:
    """How heads are trained.

    Attributes:
        depths, weights: A head is trained for each D and w_rej.
        mixing: r, the share of the target's tokens among the inputs of a chain. Chains of mostly their own tokens
            soon leave the target's text, and teach little about the one case that the rule asks about.
        length: Tokens of a chain, K.
        starts: Chains of a text, at random positions of its answer; all positions if there are fewer.
        after: Judge a token by the state after it, e_i of the paper, instead of the state that it was drawn from, e_{i-1}.
        epochs, batch, lr: Of AdamW, whose rate falls to zero along a cosine.
    """

    depths: tuple[int, ...] = (0, 1, 2, 3)
    weights: tuple[float, ...] = (1.0, 3.0, 6.0)
    mixing: float = 0.85
    length: int = 14
    starts: int = 16
    after: bool = False
    epochs: int = 4
    batch: int = 1024
    lr: float = 2e-3
    weight_decay: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.mixing <= 1:
            raise ValueError(f"mixing must be within 0 and 1, got {self.mixing}")
        if min(self.length, self.starts, self.epochs, self.batch) < 1:
            raise ValueError(
                f"length, starts, epochs and batch must be at least 1, got {self.length}, {self.starts}, {self.epochs}, {self.batch}"
            )
        if not self.depths or not self.weights or min(self.depths) < 0 or min(self.weights) <= 0:
            raise ValueError(
                f"depths must be from 0 and weights above 0, at least one of each, got {self.depths} and {self.weights}"
            )


@dataclass(frozen=True)
class Examples:
    """States [n, H], in half precision to hold many, and labels: float32 [n], 1 accepted, 0 rejected."""

    states: Tensor
    labels: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Examples]) -> Examples:
        return cls(torch.cat([part.states for part in parts]), torch.cat([part.labels for part in parts]))


def mixed_examples(drafter: Drafter, text: Text, training: AcceptanceTraining, random: torch.Generator) -> Examples:
    """Examples of one text, from chains with random starts; none beyond the end of the text."""
    order = torch.randperm(len(text.starts), generator=random)[: training.starts]
    starts = text.starts[order.sort().values]
    told = torch.rand(len(starts), training.length, generator=random) < training.mixing
    chains = draft_chains(drafter, text, starts, told)
    labels = accepted(chains, text, starts)
    # The first token after the end teaches the head that nothing follows; further ones would teach the same.
    counts = starts[:, None] + 1 + torch.arange(training.length) <= len(text.tokens)
    states = chains.states
    if training.after:
        # The state after a token exists where the chain was fed that token, not another one of the text.
        counts, labels, states = (counts & (labels | ~told))[:, :-1], labels[:, :-1], states[:, 1:]
    return Examples(states[counts].half(), labels[counts].float())


def weighted_bce(logits: Tensor, labels: Tensor, rejection_weight: float) -> Tensor:
    """Mean of -y log p - w_rej (1 - y) log(1 - p), for p = sigmoid(logits): the loss of section 3.3 with w_acc = 1."""
    weights = torch.where(labels > 0.5, 1.0, rejection_weight)
    return F.binary_cross_entropy_with_logits(logits, labels, weights)


def train_head(examples: Examples, depth: int, rejection_weight: float, training: AcceptanceTraining) -> AcceptanceHead:
    """One head; its probabilities are not calibrated yet."""
    torch.manual_seed(training.seed)
    head = AcceptanceHead(AcceptanceConfig(examples.states.shape[1], depth, rejection_weight))
    sample = examples.states[:: max(1, len(examples.states) // 20_000)].float()
    with torch.no_grad():
        assert isinstance(head.mean, Tensor) and isinstance(head.spread, Tensor)
        head.mean.copy_(sample.mean(0))
        head.spread.copy_(sample.std(0).clamp(min=1e-3))
    optimizer = torch.optim.AdamW(head.parameters(), lr=training.lr, weight_decay=training.weight_decay)
    batches = math.ceil(len(examples.labels) / training.batch)
    for epoch in range(training.epochs):
        order = torch.randperm(len(examples.labels))
        for number in range(batches):
            rows = order[number * training.batch : (number + 1) * training.batch]
            done = (epoch * batches + number) / (training.epochs * batches)
            for group in optimizer.param_groups:
                group["lr"] = training.lr * (1 + math.cos(math.pi * done)) / 2
            loss = weighted_bce(head.logits(examples.states[rows].float()), examples.labels[rows], rejection_weight)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return head.requires_grad_(False).eval()


def fit_calibration(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """The most likely (scale, shift) of sigmoid(scale * x + shift) for the labels: Platt scaling.

    Both are regularized slightly towards 1 and 0, so that they stay finite if the head is never wrong.
    """
    # Logits beyond these carry no more information, and would dominate the fit where they are wrong.
    x, y = logits.double().clamp(-FARTHEST_LOGIT, FARTHEST_LOGIT), labels.double()
    parameters = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    origin = parameters.detach().clone()
    optimizer = torch.optim.LBFGS([parameters], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(parameters[0] * x + parameters[1], y)
        loss = loss + 0.5e-3 / len(y) * (parameters - origin).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    scale, shift = parameters.detach().tolist()
    # A head that ranks examples the wrong way round knows nothing, so only the mean can be right.
    return max(scale, 1e-3), shift
