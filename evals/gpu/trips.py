"""The queue of trips: what is measured each time that a GPU host is lent for a quarter of an hour.

A trip is one command, which does its phases in order. Each phase has a deadline of its own, and the command ends by itself. What is committed under evals/results/gpu says which trip is next.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from agentspec.errors import ConfigError

LENT_SECONDS = 900.0
"""Of one loan; asking, start, transfers and idle time count."""
START_SECONDS = 60.0
"""From asking for a host until the first command runs there: start and transfer. It was 40 both times so far."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What a command does between two deadlines."""

    name: str
    seconds: float
    """Estimate on an H100."""
    limit: float
    """When it must have ended, in seconds since the command began."""
    does: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """What fits one loan: one command on the host."""

    number: int
    asks: str
    systems: tuple[str, ...]
    """What is replayed; the servers start when the command begins, as many side by side as fit."""
    phases: tuple[Phase, ...]
    size: str = "llama-8b"
    clients: tuple[int, ...] = (1, 16)
    kind: str = "H100 or H200"

    @property
    def seconds(self) -> float:
        """Estimate of all that counts as lent, the start included."""
        return START_SECONDS + sum(phase.seconds for phase in self.phases)

    @property
    def limit(self) -> float:
        """When the command must have ended, in seconds since it began."""
        return max(phase.limit for phase in self.phases)


_ALL = ("none", "suffix", "hybrid", "eagle3", "ngram")
_SMOKE = (
    "start servers; meanwhile load SGLang's kernels and the extension, run both Triton kernels against their definitions, "
    "copy to the host behind a busy stream"
)
_PARITY = "greedy answers of the small model in float32, suffix and hybrid beside plain, 1 and 16 clients"
_SAMPLE = "sample what the scheduler of each system does"
_TRACE = "record 50 steps of each system with torch's profiler, with one client"

_UNPACK = Phase("unpack", 20.0, 40.0, "unpack SGLang, agentspec and the data; compile byte code")
TRIPS = (
    Trip(
        number=1,
        asks="Does it run, is it right, and does it pay?",
        systems=_ALL,
        phases=(
            _UNPACK,
            Phase("smoke", 90, 140, _SMOKE),
            Phase("parity", 20, 165, _PARITY),
            Phase("sampling", 10, 180, "answers at temperature 0.7 beside plain's, by a chi-square test"),
            Phase("replay", 190, 350, "SQL agents and coding agents' sessions on 8B servers, in turns"),
            Phase("sample", 30, 385, _SAMPLE),
            Phase("trace", 40, 425, _TRACE),
        ),
    ),
    Trip(
        number=2,
        asks="What does stream order save, and what does a step take?",
        systems=("suffix", "suffix-wait", "hybrid", "hybrid-wait"),
        phases=(
            _UNPACK,
            Phase("replay", 200, 300, "both systems in stream order, and with steps that wait for results"),
            Phase("profile", 220, 560, "time verify steps by rows, width and context"),
        ),
        clients=(16,),
    ),
    Trip(
        number=3,
        asks="What changes with 64 clients?",
        systems=_ALL,
        phases=(
            _UNPACK,
            Phase("replay", 250, 450, "SQL agents with 64 clients"),
            Phase("sample", 60, 500, _SAMPLE),
        ),
        clients=(64,),
    ),
    Trip(
        number=4,
        asks="What does a 32B model gain?",
        systems=_ALL[:-1],
        phases=(_UNPACK, Phase("replay", 480, 570, "one 32B server at a time")),
        size="qwen-32b",
        kind="H200",
    ),
)


def trip(number: int) -> Trip:
    """Raises ConfigError if there is no such trip."""
    for one in TRIPS:
        if one.number == number:
            return one
    known = ", ".join(str(one.number) for one in TRIPS)
    raise ConfigError(f"--trip must be one of {known}, got {number}")


def next_trip(results: Path) -> Trip | None:
    """The first trip whose committed results are missing or incomplete; None if all are there."""
    for one in TRIPS:
        path = results / f"trip-{one.number}.json"
        if not path.is_file():
            return one
        done = {phase["name"] for phase in json.loads(path.read_text(encoding="utf-8"))["phases"] if phase["complete"]}
        if not {phase.name for phase in one.phases} <= done:
            return one
    return None
