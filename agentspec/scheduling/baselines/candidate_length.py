"""The number of tokens that a draft model proposes before the target verifies them: the stopping rule of SpecDec++.

Notation (SpecDec++, section 3.2): Y_1, Y_2, ... are the tokens of one draft. p_i is the predicted probability that Y_i
is accepted if all tokens before it are. h is the stopping threshold. A draft ends with its first token at which the
predicted probability that some token is rejected, 1 - p_1 p_2 ... p_k, exceeds h (algorithm 2).
"""

from __future__ import annotations

from typing import Literal

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


def parse_threshold(text: str) -> float | Literal["auto", "head", "theorem"]:
    """Reads h as it is written in settings: a number in (0, 1], "head" for the one that the acceptance head was found
    best with, "theorem" for theorem_threshold() of the models' times, or "auto" for no h. Raises ConfigError if the
    text is something else."""
    words: tuple[Literal["auto", "head", "theorem"], ...] = ("auto", "head", "theorem")
    for word in words:
        if text == word:
            return word
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ConfigError(
            f"stop_threshold must be a number > 0 and <= 1, auto, head or theorem, got {text!r}; auto leaves the decision to "
            "the cost model, and 1 never ends a draft early"
        )
    return value


def theorem_threshold(target_seconds: float, draft_seconds: float) -> float:
    """The probability of a rejection from which stopping is cheaper than going on: (c2 + D) / (c1 + c2 + D) with c1 =
    t_draft and c2 = t_target - t_draft (SpecDec++, Theorem 3.1). The constant D >= 0 depends on the problem and is taken
    as 0, which gives the least threshold. 0 if a draft's token takes as long as a verification."""
    return max(1.0 - draft_seconds / target_seconds, 0.0)


def candidate_length(probabilities: ArrayLike, h: float) -> NDArray[np.int64]:
    """The number of candidates of each draft. The token at which a draft stops is one: it is drafted already, and its
    verification is free. Raises ConfigError if h is not in [0, 1].

    Args:
        probabilities: [..., K], p_i of the tokens of each draft. Values behind the end of a draft do not count, so they
            may be computed for all drafts of a batch before any of them has stopped.
        h: A draft stops once 1 - p_1 ... p_k > h. 0 gives one token, or more while tokens are certain; 1 gives K.

    Returns:
        [...], from 1 to K; 0 if K is 0.
    """
    accepted = np.cumprod(np.asarray(probabilities, np.float64), axis=-1)
    stops = 1 - accepted > check_threshold(h)
    most: int = accepted.shape[-1]
    if not most:
        return np.zeros(accepted.shape[:-1], np.int64)
    return np.where(stops.any(-1), stops.argmax(-1) + 1, most).astype(np.int64)
