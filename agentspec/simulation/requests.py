"""The requests of a run: their sizes, when they arrive, and the places of their drafts in an acceptance file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ConfigError
from agentspec.simulation.acceptance import Acceptance
from agentspec.simulation.arrivals import Arrivals


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """n requests in order of arrival."""

    acceptance: Acceptance
    arrival: NDArray[np.float64]
    """[n], seconds; infinity for a request that a client sends when its last one is answered."""
    phase: NDArray[np.int32]
    """[n], index of the phase of the arrivals."""
    prompt_tokens: NDArray[np.int64]
    """[n]"""
    cached_tokens: NDArray[np.int64]
    """[n], number of prompt tokens that need not be computed again."""
    output_tokens: NDArray[np.int64]
    """[n]"""
    first_place: NDArray[np.int64]
    """[n], the place after the first output token."""

    def __len__(self) -> int:
        return len(self.arrival)


def draw_requests(acceptance: Acceptance, arrivals: Arrivals, num_requests: int, seed: int) -> Requests:
    """Draws requests and their times. A seed draws the same requests at any rate of arrivals, each once, in random
    order, before any is drawn again. The beginning of a prompt that an earlier request of its session computed is
    cached, and never evicted. Raises ConfigError if there is no request."""
    _require_some(num_requests)
    rng = np.random.default_rng([seed, 1])
    rounds = -(-num_requests // len(acceptance))
    chosen = np.concatenate([rng.permutation(len(acceptance)) for _ in range(rounds)])[:num_requests]
    return _asked(acceptance, arrivals, chosen, seed)


def ordered_requests(acceptance: Acceptance, arrivals: Arrivals, num_requests: int, seed: int) -> Requests:
    """The recorded requests in their order, again and again. Arguments and errors are those of draw_requests()."""
    _require_some(num_requests)
    return _asked(acceptance, arrivals, np.arange(num_requests) % len(acceptance), seed)


def _asked(acceptance: Acceptance, arrivals: Arrivals, chosen: NDArray[np.int64], seed: int) -> Requests:
    times, phases = arrivals.draw(len(chosen), seed)
    return Requests(
        acceptance=acceptance,
        arrival=times,
        phase=phases,
        prompt_tokens=acceptance.prompt_tokens[chosen].astype(np.int64),
        cached_tokens=acceptance.cached_tokens[chosen].astype(np.int64),
        output_tokens=acceptance.output_tokens[chosen],
        first_place=acceptance.starts[chosen],
    )


def _require_some(num_requests: int) -> None:
    if num_requests < 1:
        raise ConfigError(f"a run needs at least 1 request, got {num_requests}")
