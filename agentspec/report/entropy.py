"""Empirical entropy of outputs (SuffixDecoding, appendix A.2): how well what was written before tells the next token.

The outputs make a suffix tree. A node is a context, a text of 1 to 4 tokens, and its children are the tokens that
followed it. With n_v occurrences of the context v, n_vt of them followed by t,

    H(v) = - sum over t of n_vt / n_v * log2(n_vt / n_v)         entropy = sum n_v H(v) / sum n_v

The paper leaves open which nodes count. Here v counts if it stands in two outputs at least: what an output repeats of
itself is not what others tell of it. The root does not count, whose entropy is that of the tokens' frequencies, which
no drafter draws on; nor do deeper contexts, because a long repeat is one at every depth and would outweigh all else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.report.bootstrap import ratio_interval

DEPTH = 4
METHOD = (
    f"mean entropy in bits of the next token, over all contexts of 1 to {DEPTH} tokens that stand in two of the "
    "sampled outputs at least, weighted by how often they occur (SuffixDecoding, appendix A.2); interval: bootstrap by "
    "session with the tree as it is"
)


@dataclass(frozen=True, slots=True, eq=False)
class OutputEntropy:
    """What each of n outputs adds to the two sums."""

    bits: NDArray[np.float64]
    """[n], of -log2(n_vt / n_v) over the output's tokens and their contexts."""
    contexts: NDArray[np.float64]
    """[n], how many those are."""

    @property
    def value(self) -> float | None:
        """Bits a token; None where no context stands in two outputs."""
        total = self.contexts.sum()
        return float(self.bits.sum() / total) if total else None

    def interval(self, sessions: Sequence[str], seed: int) -> dict[str, float] | None:
        """mean, low and high; None where no context stands in two outputs."""
        return ratio_interval(self.bits, self.contexts, sessions, seed)


def output_entropy(outputs: Sequence[NDArray[np.int32]], depth: int = DEPTH) -> OutputEntropy:
    """Builds the levels of the tree one after another and sums them up.

    Args:
        outputs: int32[n] each.
        depth: Tokens of the longest contexts, >= 1.
    """
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
        # A context of one output has none but such below it.
        repeated = np.bincount(nodes[firsts])[nodes] >= 2
        positions, nodes, occurrences = positions[repeated], nodes[repeated], occurrences[repeated]
        children = np.unique(nodes * size + symbols[positions], return_inverse=True)[1].reshape(-1)
        followed = np.bincount(children)[children] if len(children) else children
        bits += np.bincount(owner[positions], -np.log2(followed / occurrences), minlength=n)
        contexts += np.bincount(owner[positions], minlength=n)
    return OutputEntropy(bits, contexts)


def reading(value: float) -> str:
    """What a value usually means, in words."""
    if value < 1.0:
        return (
            "The next token nearly always follows from those before it: outputs of one mould, made for suffix drafts."
        )
    if value < 1.75:
        return (
            "Much is told by the tokens before it, as in generated SQL, tool calls or edits: suffix drafts work well."
        )
    if value < 2.1:
        return "Some of it repeats, as in step-by-step work: suffix drafts help in places."
    return "Little of it repeats, as in open chat: suffix drafts alone gain little."
