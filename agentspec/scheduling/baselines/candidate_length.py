"""The number of tokens that a draft model proposes before the target verifies them: the stopping rule of SpecDec++.

Notation (SpecDec++, section 3.2): Y_1, Y_2, ... are the tokens of one draft. p_i is the predicted probability that Y_i
is accepted if all tokens before it are. h is the stopping threshold. A draft ends with its first token at which the
predicted probability that some token is rejected, 1 - p_1 p_2 ... p_k, exceeds h (algorithm 2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentspec.errors import ConfigError


def check_threshold(h: float) -> float:
    """Returns `h`. Raises ConfigError unless it is in [0, 1]."""
    if not 0 <= h <= 1:
        raise ConfigError(
            f"the stopping threshold h is a probability, from 0 (drafts of one token) to 1 (never stop), got {h!r}"
        )
    return h


def parse_threshold(text: str) -> float | None:
    """Reads h as it is written in settings: a number in (0, 1], or "head" for the one that the acceptance head was found
    best with, which is None here.

    Raises:
        ConfigError: The text is something else.
    """
    if text == "head":
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ConfigError(
            f"stop_threshold must be a number > 0 and <= 1, or head, got {text!r}; 1 leaves the decision to the cost model"
        )
    return value


def candidate_length(probabilities: ArrayLike, h: float) -> NDArray[np.int64]:
    """The number of candidates of each draft. The token at which a draft stops is one: it is drafted already, and its
    verification is free.

    Args:
        probabilities: [..., K], p_i of the tokens of each draft. Values behind the end of a draft do not count, so they
            may be computed for all drafts of a batch before any of them has stopped.
        h: A draft stops once 1 - p_1 ... p_k > h. 0 gives one token, or more while tokens are certain; 1 gives K.

    Returns:
        [...], from 1 to K; 0 if K is 0.

    Raises:
        ConfigError: h is not in [0, 1].
    """
    accepted = np.cumprod(np.asarray(probabilities, np.float64), axis=-1)
    stops = 1 - accepted > check_threshold(h)
    most: int = accepted.shape[-1]
    if not most:
        return np.zeros(accepted.shape[:-1], np.int64)
    return np.where(stops.any(-1), stops.argmax(-1) + 1, most).astype(np.int64)
