"""Acceptance of synthetic requests: all drafts have one shape, and their tokens are accepted at given rates.

0.7                 each drafted token is accepted with this probability; a step with k drafted tokens yields
                    (1 - 0.7^(k+1)) / (1 - 0.7) tokens (SmartSpec, eq. 8)
power:C:GAMMA       C * s^GAMMA of s drafted tokens are accepted on average, independently in each step (Su et al.,
                    eq. 5)
medusa:ALPHA:HEADS:TOP
                    trees of all combinations of each head's TOP tokens; each token is accepted with probability
                    ALPHA, independently of other heads and tokens (SmartSpec, eq. 10)
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ConfigError
from agentspec.simulation.acceptance import MAX_NODES, Acceptance

FORMS = "RATE, power:C:GAMMA, medusa:ALPHA:HEADS:TOP"
"""The forms that acceptance_at_rate() reads, for help texts."""
_FIELDS = {"power": 2, "medusa": 3}


def acceptance_at_rate(
    text: str, num_requests: int, prompt_tokens: int, output_tokens: int, max_draft_tokens: int, seed: int
) -> Acceptance:
    """Makes synthetic requests of one length, in one of the forms above. No prompt token is cached, and Medusa trees
    have a size of their own. Raises ConfigError if the form is unknown, or a number is out of range."""
    for name, value in (("requests", num_requests), ("prompt tokens", prompt_tokens), ("output tokens", output_tokens)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}; pass a positive integer")
    if not 1 <= max_draft_tokens < MAX_NODES:
        raise ConfigError(f"drafted tokens must be in [1, {MAX_NODES - 1}], got {max_draft_tokens}")
    kind, numbers = _parsed(text)
    rng = np.random.default_rng(seed)
    places = output_tokens - 1
    if kind == "medusa":
        alpha, heads, top = numbers
        parents, estimates, accepted = _medusa(alpha, int(heads), int(top), num_requests * places, rng)
    else:
        depths = np.arange(max_draft_tokens + 1)
        parents = depths - 1
        if kind == "power":
            survival = _power_survival(numbers[0], numbers[1], max_draft_tokens)
            estimates = survival
            drawn = rng.random((num_requests * places, 1))
            runs = (drawn < survival[1:]).sum(axis=1)
        else:
            estimates = np.power(numbers[0], depths.astype(np.float64))
            runs = _run_lengths(rng.random((num_requests, places)) < numbers[0], max_draft_tokens).ravel()
        accepted = np.minimum(runs[:, None], depths)
    # The last token is a bonus token.
    left = np.tile(np.arange(places - 1, -1, -1), num_requests)
    accepted = np.minimum(accepted, left[:, None])
    num_places, width = accepted.shape
    return Acceptance(
        name=text,
        prompt_tokens=np.full(num_requests, prompt_tokens, np.int32),
        cached_tokens=np.zeros(num_requests, np.int32),
        starts=np.arange(num_requests + 1, dtype=np.int64) * places,
        num_nodes=np.full(num_places, width, np.uint8),
        estimates=np.broadcast_to(estimates.astype(np.float32), (num_places, width)),
        parents=np.broadcast_to(parents.astype(np.int8), (num_places, width)),
        accepted=accepted.astype(np.uint8),
    )


def is_rate(text: str) -> bool:
    """Whether the text is one for acceptance_at_rate(), and not a file."""
    if text.partition(":")[0] in _FIELDS:
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parsed(text: str) -> tuple[str, list[float]]:
    kind, *words = text.split(":") if ":" in text else ("rate", text)
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    if (kind != "rate" and _FIELDS.get(kind) != len(numbers)) or not numbers:
        raise ConfigError(f"acceptance must be one of {FORMS}, got {text!r}; for example 0.7")
    if kind == "rate" and not 0 <= numbers[0] < 1:
        raise ConfigError(f"an acceptance rate must be in [0, 1), got {text}")
    if kind == "power" and not (0 < numbers[0] <= 1 and 0 <= numbers[1] <= 1):
        raise ConfigError(f"C must be in (0, 1] and GAMMA in [0, 1], got {text}")
    if kind == "medusa":
        alpha, heads, top = numbers
        whole = heads == int(heads) >= 1 and top == int(top) >= 1
        if not 0 < alpha < 1 or not whole or 1 + sum(top**h for h in range(1, int(heads) + 1)) > MAX_NODES:
            raise ConfigError(f"ALPHA must be in (0, 1) and the tree of at most {MAX_NODES} nodes, got {text}")
    return kind, numbers


def _run_lengths(predicted: NDArray[np.bool_], longest: int) -> NDArray[np.int64]:
    """[n, places], number of tokens predicted without a miss from each place on, at most `longest`."""
    runs = np.zeros(predicted.shape, np.int64)
    run = np.zeros(len(predicted), np.int64)
    for i in range(predicted.shape[1] - 1, -1, -1):
        run = np.where(predicted[:, i], np.minimum(run + 1, longest), 0)
        runs[:, i] = run
    return runs


def _power_survival(c: float, gamma: float, longest: int) -> NDArray[np.float64]:
    """[longest + 1], the probability that at least 0, 1, 2, ... tokens are accepted: the curve's increments."""
    means = c * np.arange(longest + 1, dtype=np.float64) ** gamma
    means[0] = 0.0
    return np.concatenate([[1.0], np.diff(means)])


def _medusa(
    alpha: float, heads: int, top: int, places: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Parents and estimates [w], and accepted [places, w], of trees. The nodes of top 1 come first, then those that top
    2 adds, and so on.

    The first acceptable token of a head is accepted, so the j-th one is with probability alpha * (1 - alpha)^(j - 1).
    """
    combinations = [c for h in range(1, heads + 1) for c in itertools.product(range(top), repeat=h)]
    combinations.sort(key=lambda c: (max(c), len(c), c))
    index = {c: i + 1 for i, c in enumerate(combinations)}
    parents = np.array([-1, *(index.get(c[:-1], 0) for c in combinations)])
    estimates = np.array([1.0, *(np.prod([alpha * (1 - alpha) ** j for j in c]) for c in combinations)])
    # numbers[i, h]: the number, from 1 on, of the head's right token.
    numbers = rng.geometric(alpha, (places, heads))
    accepted = np.zeros((places, len(parents)), np.int64)
    for c, node in index.items():
        right = (numbers[:, : len(c)] == np.array(c) + 1).all(axis=1)
        accepted[right, node:] += 1
    return parents, estimates, accepted
