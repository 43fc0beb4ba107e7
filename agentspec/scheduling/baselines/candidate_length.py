"""How many tokens a drafter proposes before the target verifies them: the stopping rule of SpecDec++.

Notation (SpecDec++, section 3.2): Y_1, Y_2, ... are the tokens of one draft, p_i is the predicted probability that Y_i is
accepted given that all before it are, h the stopping threshold. A draft stops behind its first token at which the
predicted probability that some token is rejected, 1 - p_1 p_2 ... p_k, exceeds h (algorithm 2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentspec.errors import ConfigError


def check_threshold(h: float) -> float:
    """Gives `h`; raises ConfigError unless it is within 0 and 1."""
    if not 0 <= h <= 1:
        raise ConfigError(
            f"the stopping threshold h is a probability, from 0 (drafts of one token) to 1 (never stop), got {h!r}"
        )
    return h


def candidate_length(probabilities: ArrayLike, h: float) -> NDArray[np.int64]:
    """Candidates of each draft, the one at which it stops among them: it is drafted already, and verifying it is free.

    Args:
        probabilities: [..., K], p_i of the tokens of each draft. What stands behind the end of a draft does not count,
            so it may be computed for all drafts of a batch before any of them has stopped.
        h: stop once 1 - p_1 ... p_k > h; 0 gives drafts of one token unless it is certain, 1 gives K.

    Returns:
        [...], within 1 and K; 0 where K is 0.

    Raises:
        ConfigError: h is no probability.
    """
    accepted = np.cumprod(np.asarray(probabilities, np.float64), axis=-1)
    stops = 1 - accepted > check_threshold(h)
    most: int = accepted.shape[-1]
    if not most:
        return np.zeros(accepted.shape[:-1], np.int64)
    return np.where(stops.any(-1), stops.argmax(-1) + 1, most).astype(np.int64)
