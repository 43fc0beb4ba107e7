"""When requests arrive: at random intervals, or from a fixed number of clients that wait for their answers.

poisson:RATE                        RATE requests per second, with exponential intervals
gamma:INTERVAL:CV                   Gamma intervals of this mean and coefficient of variation (Su et al., 5.3)
phases:SECONDS:INTERVAL:INTERVAL:CV two mean intervals in turn, each for SECONDS
closed:CLIENTS                      each client sends its next request when its last one is answered
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ConfigError

Kind = Literal["poisson", "gamma", "phases", "closed"]
_FIELDS: dict[str, tuple[str, ...]] = {
    "poisson": ("RATE",),
    "gamma": ("INTERVAL", "CV"),
    "phases": ("SECONDS", "INTERVAL", "INTERVAL", "CV"),
    "closed": ("CLIENTS",),
}
FORMS = ", ".join(":".join([kind, *fields]) for kind, fields in _FIELDS.items())
"""The forms that parse_arrivals() reads, for help texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When requests arrive. Raises ConfigError if an interval, a length of a phase or the number of clients is not
    positive and finite, or `cv` is negative."""

    intervals: tuple[float, ...] = ()
    """Mean seconds between requests, for each phase; () with clients."""
    cv: float = 1.0
    """Coefficient of variation of the intervals; 1 makes them exponential, 0 equal."""
    phase_seconds: float = math.inf
    """Length of a phase in seconds. The first phase follows the last one."""
    clients: int | None = None
    """Number of clients of a closed loop. All requests then come from them. None: an open loop."""

    def __post_init__(self) -> None:
        for interval in self.intervals:
            if not 0 < interval < math.inf:
                raise ConfigError(
                    f"the mean interval of requests must be positive and finite, got {interval}; pass seconds > 0"
                )
        if not 0 <= self.cv < math.inf:
            raise ConfigError(f"the coefficient of variation must be >= 0 and finite, got {self.cv}; 1 is Poisson's")
        if not self.phase_seconds > 0:
            raise ConfigError(f"a phase must last longer than 0 seconds, got {self.phase_seconds}; pass seconds > 0")
        if self.clients is not None and self.clients < 1:
            raise ConfigError(f"a closed loop must have at least 1 client, got {self.clients}; pass closed:1 or more")
        if (self.clients is None) == (not self.intervals):
            raise ConfigError(
                f"arrivals must have either intervals or clients, got {self.intervals} and {self.clients}; pass one"
            )

    @property
    def num_phases(self) -> int:
        return max(len(self.intervals), 1)

    def draw(self, num_requests: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Draws arrivals: times in seconds, float64[n], from 0 on, and the phase of each, int32[n].

        A seed gives the same intervals, in units of their mean, for every mean. With clients, each client's first
        request has the time 0. The others have infinity, because they come when earlier ones are answered.
        """
        if self.clients is not None:
            times = np.full(num_requests, math.inf)
            times[: self.clients] = 0.0
            return times, np.zeros(num_requests, np.int32)
        rng = np.random.default_rng(seed)
        if self.cv > 0:
            shape = 1.0 / self.cv**2
            gaps = rng.gamma(shape, 1.0 / shape, num_requests)
        else:
            gaps = np.ones(num_requests)
        if len(self.intervals) == 1:
            return np.cumsum(gaps) * self.intervals[0], np.zeros(num_requests, np.int32)
        times, phases = np.zeros(num_requests), np.zeros(num_requests, np.int32)
        now = 0.0
        for i, gap in enumerate(gaps.tolist()):
            now = self._after(now, gap)
            times[i], phases[i] = now, self.phase_at(now)
        return times, phases

    def phase_at(self, now: float) -> int:
        """The index of the phase at a time, in seconds."""
        return int(now // self.phase_seconds) % self.num_phases

    def _after(self, now: float, gap: float) -> float:
        """The time when `gap` mean intervals have passed. A gap that a phase's end cuts goes on with the next mean."""
        while True:
            end = (now // self.phase_seconds + 1) * self.phase_seconds
            interval = self.intervals[self.phase_at(now)]
            if now + gap * interval < end:
                return now + gap * interval
            gap -= (end - now) / interval
            now = end


def parse_arrivals(text: str, service_rate: float | None = None) -> Arrivals:
    """Reads one of the forms above. A RATE that ends with `x` is a multiple of `service_rate`, in requests per second.
    Raises ConfigError if the form is unknown, or a number is invalid or out of range."""
    kind, *words = text.split(":")
    fields = _FIELDS.get(kind)
    if fields is None or len(words) != len(fields):
        raise ConfigError(f"arrivals must be one of {FORMS}, got {text!r}; for example poisson:2")
    if kind == "poisson":
        rate = _rate(words[0], service_rate, text)
        if not 0 < rate < math.inf:
            raise ConfigError(f"the rate of requests must be positive and finite, got {words[0]} in {text!r}")
        return Arrivals(intervals=(1.0 / rate,))
    if kind == "closed":
        if not words[0].isdecimal():
            raise ConfigError(f"CLIENTS must be an integer >= 1, got {words[0]!r} in {text!r}")
        return Arrivals(clients=int(words[0]))
    numbers = [_number(word, text) for word in words]
    if kind == "gamma":
        return Arrivals(intervals=(numbers[0],), cv=numbers[1])
    return Arrivals(intervals=(numbers[1], numbers[2]), cv=numbers[3], phase_seconds=numbers[0])


def _rate(word: str, service_rate: float | None, text: str) -> float:
    if not word.endswith("x"):
        return _number(word, text)
    if service_rate is None:
        raise ConfigError(f"a multiple of the service rate needs that rate, got {text!r}; pass requests a second")
    return _number(word[:-1], text) * service_rate


def _number(word: str, text: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ConfigError(f"arrivals must have numbers between colons, got {word!r} in {text!r}") from None
