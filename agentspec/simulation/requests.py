"""The requests of a run: what they ask for, when they come, and where in an acceptance file their drafts stand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ConfigError
from agentspec.simulation.acceptance import Acceptance
from agentspec.simulation.arrivals import Arrivals


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """n requests in the order in which they come."""

    acceptance: Acceptance
    arrival: NDArray[np.float64]
    """[n], seconds; infinity for those that come when a client's last request is answered."""
    phase: NDArray[np.int32]
    """[n], of the arrivals."""
    prompt_tokens: NDArray[np.int64]
    """[n]"""
    cached_tokens: NDArray[np.int64]
    """[n], of the prompt, not to be computed again."""
    output_tokens: NDArray[np.int64]
    """[n]"""
    first_place: NDArray[np.int64]
    """[n], the place behind the first output token."""

    def __len__(self) -> int:
        return len(self.arrival)


def draw_requests(
    acceptance: Acceptance, arrivals: Arrivals, num_requests: int, seed: int, *, prefix_cache: bool = True
) -> Requests:
    """Draws what is asked and when; the same seed asks for the same at any rate of arrivals.

    Args:
        acceptance: Whose requests are taken, each as often as the others, in an order of their own each time around.
        arrivals: When they come.
        num_requests: How many.
        seed: Of all that is drawn.
        prefix_cache: Whether a prompt's beginning that an earlier request of its session had is not computed again.
            Whether it was evicted in between is not simulated.

    Raises:
        ConfigError: There is no request.
    """
    _require_some(num_requests)
    rng = np.random.default_rng([seed, 1])
    rounds = -(-num_requests // len(acceptance))
    chosen = np.concatenate([rng.permutation(len(acceptance)) for _ in range(rounds)])[:num_requests]
    return _asked(acceptance, arrivals, chosen, seed, prefix_cache)


def ordered_requests(acceptance: Acceptance, arrivals: Arrivals, num_requests: int, seed: int) -> Requests:
    """What was recorded in the order of the recording, again and again; arguments and errors as of draw_requests()."""
    _require_some(num_requests)
    return _asked(acceptance, arrivals, np.arange(num_requests) % len(acceptance), seed, True)


def _asked(
    acceptance: Acceptance, arrivals: Arrivals, chosen: NDArray[np.int64], seed: int, prefix_cache: bool
) -> Requests:
    times, phases = arrivals.draw(len(chosen), seed)
    return Requests(
        acceptance=acceptance,
        arrival=times,
        phase=phases,
        prompt_tokens=acceptance.prompt_tokens[chosen].astype(np.int64),
        cached_tokens=acceptance.cached_tokens[chosen].astype(np.int64) * prefix_cache,
        output_tokens=acceptance.output_tokens[chosen],
        first_place=acceptance.starts[chosen],
    )


def _require_some(num_requests: int) -> None:
    if num_requests < 1:
        raise ConfigError(f"a run needs at least 1 request, got {num_requests}")
