"""What happened in a simulated run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentspec.simulation.requests import Requests


@dataclass(slots=True, eq=False)
class RunLog:
    """What happened in a run: one entry a step, and times of each request."""

    requests: Requests
    arrival: NDArray[np.float64]
    """[n], seconds, of clients' requests too."""
    admitted: NDArray[np.float64]
    """[n], when it first left the queue."""
    first_token: NDArray[np.float64]
    """[n]"""
    finished: NDArray[np.float64]
    """[n]"""
    generated: NDArray[np.int64]
    """[n], output tokens."""
    retractions: int = 0
    peak_kv_tokens: int = 0
    uncovered_steps: int = 0
    """Steps whose size lies outside of what the profile measured."""
    start: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    width: list[int] = field(default_factory=list)
    """0 for steps that prefill."""
    tokens: list[int] = field(default_factory=list)
    """Generated in the step."""
    drafted: list[int] = field(default_factory=list)
    """Verified, without roots and padding."""
    expected: list[float] = field(default_factory=list)
    """What the controller expected of the step, in tokens."""
    reason: list[str] = field(default_factory=list)
