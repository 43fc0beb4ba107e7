"""Rules that choose between a suffix draft and the draft model row by row, whatever the other rows need.

Each says which rows of a batch have a suffix draft that is too weak, so that they ask for the draft model's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from agentspec.drafts import DraftBatch

if TYPE_CHECKING:
    from agentspec.scheduling.hybrid.config import HybridConfig


class RowRule(Protocol):
    """Says which of b rows have a weak suffix draft."""

    def __call__(
        self, config: HybridConfig, suffix: DraftBatch, expected: NDArray[np.float64], model: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """bool[b].

        Args:
            config: Settings.
            suffix: The suffix drafts of the rows.
            expected: float64[b], accepted tokens to expect of each.
            model: float64[b], those to expect of the draft model's drafts.
        """


def weak_by_score(
    config: HybridConfig, suffix: DraftBatch, expected: NDArray[np.float64], model: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """SCORE <= tau (SuffixDecoding, hybrid decoding); tau is the draft model's own accepted length where it is "auto"."""
    weak: NDArray[np.bool_] = ~(expected > (model if config.tau == "auto" else config.tau))
    return weak


def weak_by_match_length(
    config: HybridConfig, suffix: DraftBatch, expected: NDArray[np.float64], model: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """The match has fewer than `min_match` tokens, or there is no draft (TensorRT-LLM)."""
    weak: NDArray[np.bool_] = (suffix.match_lens < config.min_match) | (np.diff(suffix.offsets) == 1)
    return weak
