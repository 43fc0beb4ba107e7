"""Empirical entropy of outputs (SuffixDecoding, appendix A.2): how well earlier text predicts the next token.

The outputs form a suffix tree. A node is a context of 1 to 4 tokens, and its children are the tokens that followed it.
If context v occurs n_v times and t follows it n_vt times,

    H(v) = - sum over t of n_vt / n_v * log2(n_vt / n_v)         entropy = sum n_v H(v) / sum n_v

The paper leaves open which nodes count. Here a context counts if it is in at least two outputs, because repetition
within one output says nothing about other outputs. The root does not count, because its entropy is that of token
frequencies, which no drafter uses. Deeper contexts do not count either: a long repeat occurs at every depth and would
outweigh the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.measures.intervals import ratio_interval

DEPTH = 4
METHOD = (
    f"mean entropy of the next token in bits, over all contexts of 1 to {DEPTH} tokens that are in at least two of the "
    "sampled outputs, weighted by the number of their occurrences (SuffixDecoding, appendix A.2). The interval is over "
    "sessions; the tree is not rebuilt"
)


@dataclass(frozen=True, slots=True, eq=False)
class OutputEntropy:
    """The part of each of n outputs in the two sums."""

    bits: NDArray[np.float64]
    """[n], the sum of -log2(n_vt / n_v) over the output's tokens and their contexts."""
    contexts: NDArray[np.float64]
    """[n], the number of those contexts."""

    @property
    def value(self) -> float | None:
        """Bits per token; None where no context is in two outputs."""
        total = self.contexts.sum()
        return float(self.bits.sum() / total) if total else None

    def interval(self, sessions: Sequence[str]) -> dict[str, float] | None:
        """The mean, low and high of the entropy; None where no context is in two outputs."""
        return ratio_interval(self.bits, self.contexts, sessions)


@dataclass(frozen=True, slots=True)
class LengthByEntropy:
    """A line through sets of outputs: log(accept length) = intercept + slope * entropy."""

    intercept: float
    slope: float
    deviation: float
    """The standard deviation of the logarithms from the line, with n - 2 degrees of freedom."""
    mean: float
    """The mean entropy of the sets."""
    spread: float
    """The sum of squared distances of their entropies from it."""
    num_sets: int

    def expected(self, entropy: float) -> dict[str, float]:
        """The accept length to expect of a further set, and the interval that 90 % of such sets are in, as mean, low
        and high. An accept length is at least 1."""
        middle = self.intercept + self.slope * entropy
        distance = (entropy - self.mean) ** 2 / self.spread
        half = _QUANTILE * self.deviation * float(np.sqrt(1.0 + 1.0 / self.num_sets + distance))
        low, mean, high = np.maximum(np.exp([middle - half, middle, middle + half]), 1.0).tolist()
        return {"mean": mean, "low": low, "high": high}


_QUANTILE = 1.833
"""The 95 % quantile of Student's t with 9 degrees of freedom, for the 11 sets below."""
LENGTH_BY_ENTROPY = {
    "cold": LengthByEntropy(2.19005, -0.58444, 0.25615, 1.72599, 2.63546, 11),
    "warm": LengthByEntropy(2.42355, -0.621, 0.32134, 1.72599, 2.63546, 11),
}
"""Fitted to the sets and stages of evals/results/report/bench.json (`agentspec bench report --case ranking`)."""


def output_entropy(outputs: Sequence[NDArray[np.int32]], depth: int = DEPTH) -> OutputEntropy:
    """The entropy of outputs, computed level by level of the tree. `outputs`: int32[n] each. `depth`: the number of
    tokens of the longest contexts, >= 1."""
    n = len(outputs)
    bits, contexts = np.zeros(n), np.zeros(n)
    if not sum(map(len, outputs)):
        return OutputEntropy(bits, contexts)
    text = np.concatenate(outputs)
    owner = np.repeat(np.arange(n), [len(output) for output in outputs])
    starts = np.repeat(np.cumsum([0, *map(len, outputs[:-1])]), [len(output) for output in outputs])
    symbols = np.unique(text, return_inverse=True)[1].reshape(-1).astype(np.int64)
    size = int(symbols.max()) + 1
    # nodes[i] numbers the context of `length` tokens before positions[i].
    positions, nodes = np.arange(len(text)), np.zeros(len(text), np.int64)
    for length in range(1, depth + 1):
        inside = positions - length >= starts[positions]
        positions, nodes = positions[inside], nodes[inside]
        if not len(positions):
            break
        nodes = np.unique(nodes * size + symbols[positions - length], return_inverse=True)[1].reshape(-1)
        occurrences = np.bincount(nodes)[nodes]
        firsts = np.unique(nodes * n + owner[positions], return_index=True)[1]
        # All contexts below one that is in a single output are in that output only.
        repeated = np.bincount(nodes[firsts])[nodes] >= 2
        positions, nodes, occurrences = positions[repeated], nodes[repeated], occurrences[repeated]
        children = np.unique(nodes * size + symbols[positions], return_inverse=True)[1].reshape(-1)
        followed = np.bincount(children)[children] if len(children) else children
        bits += np.bincount(owner[positions], -np.log2(followed / occurrences), minlength=n)
        contexts += np.bincount(owner[positions], minlength=n)
    return OutputEntropy(bits, contexts)


def reading(value: float) -> str:
    """The usual meaning of a value, in words."""
    if value < 1.0:
        return "The tokens before it nearly always determine the next token: suffix drafts suit such outputs very well."
    if value < 1.75:
        return (
            "Earlier tokens often determine the next one, as in generated SQL, tool calls or edits: suffix drafts work "
            "well."
        )
    if value < 2.1:
        return "A part of the text repeats, as in step-by-step work: suffix drafts help in places."
    return "The tokens before it often leave the next token open, as in open chat."
