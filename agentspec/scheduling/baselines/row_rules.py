"""Rules that choose between the suffix draft and the draft model for each row alone.

Each rule says which rows of a batch have a suffix draft that is too weak, bool[b]. These rows use the draft model. The
rules take the settings, the suffix drafts, and the expected number of accepted tokens of each suffix draft and of each
draft of the draft model, float64[b].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentspec.drafts import DraftBatch

if TYPE_CHECKING:
    from agentspec.scheduling.hybrid.config import HybridConfig


def weak_by_score(
    config: HybridConfig, suffix: DraftBatch, expected: NDArray[np.float64], model: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """SCORE <= tau (SuffixDecoding, hybrid decoding). "auto" sets tau to the draft model's expected number of accepted
    tokens."""
    weak: NDArray[np.bool_] = ~(expected > (model if config.tau == "auto" else config.tau))
    return weak


def weak_by_match_length(
    config: HybridConfig, suffix: DraftBatch, expected: NDArray[np.float64], model: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """The match has fewer than `min_match` tokens, or there is no draft (TensorRT-LLM)."""
    weak: NDArray[np.bool_] = (suffix.match_lens < config.min_match) | (np.diff(suffix.offsets) == 1)
    return weak
