"""The queue of trips: what is measured each time that a GPU host is lent for a quarter of an hour.

A trip is one or two commands. A command does its phases in order, each of which has a deadline of its own, and ends by
itself. What is committed under evals/results/gpu says which trip is next.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from agentspec.errors import ConfigError

LENT_SECONDS = 900.0
"""Of one loan; asking, start, transfers and idle time count."""
START_SECONDS = 110.0
"""From asking for a host until the first command runs there: start and transfer."""
BETWEEN_SECONDS = 25.0
"""From the end of a command until the next one runs on the same host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What a command does between two deadlines."""

    name: str
    does: str
    seconds: float
    """Estimate on an H100."""
    limit: float
    """When it must have ended, in seconds since the command began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command on the host."""

    phases: tuple[Phase, ...]

    @property
    def seconds(self) -> float:
        """Estimate."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def limit(self) -> float:
        """When it must have ended, in seconds since it began."""
        return max(phase.limit for phase in self.phases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """What fits one loan."""

    number: int
    asks: str
    commands: tuple[Command, ...]
    size: str = "llama-8b"
    backend: str = "triton"
    clients: tuple[int, ...] = (1, 16)
    kind: str = "H100 or H200"

    @property
    def seconds(self) -> float:
        """Estimate of all that counts as lent, the start included."""
        return START_SECONDS + sum(c.seconds for c in self.commands) + BETWEEN_SECONDS * (len(self.commands) - 1)


def _unpack(limit: float = 40.0) -> Phase:
    return Phase(
        name="unpack", does="unpack SGLang, agentspec and the data; compile byte code", seconds=20, limit=limit
    )


TRIPS = (
    Trip(
        number=1,
        asks="Does it run, is it right, and does it pay?",
        commands=(
            Command(
                phases=(
                    _unpack(),
                    Phase(
                        name="smoke",
                        does="load the extension and SGLang's kernels, run both Triton kernels against their definitions, "
                        "copy to the host behind a busy stream; servers start meanwhile",
                        seconds=75,
                        limit=150,
                    ),
                    Phase(
                        name="parity",
                        does="greedy answers in float32, suffix and hybrid beside plain, at 1 and 16 clients",
                        seconds=35,
                        limit=195,
                    ),
                    Phase(
                        name="sampling",
                        does="answers at temperature 0.7 beside plain's, by a chi-square test",
                        seconds=15,
                        limit=225,
                    ),
                )
            ),
            Command(
                phases=(
                    Phase(
                        name="replay:none+suffix+hybrid",
                        does="start three 8B servers side by side; SQL agents and coding agents' sessions in turns",
                        seconds=210,
                        limit=270,
                    ),
                    Phase(
                        name="replay:eagle3+ngram",
                        does="the same of SGLang's EAGLE-3 and NGRAM",
                        seconds=150,
                        limit=430,
                    ),
                )
            ),
        ),
    ),
    Trip(
        number=2,
        asks="What does a step take?",
        commands=(
            Command(
                phases=(
                    _unpack(),
                    Phase(
                        name="profile",
                        does="time verify steps by rows, width and context",
                        seconds=200,
                        limit=320,
                    ),
                    Phase(
                        name="trace",
                        does="record 50 steps of suffix, EAGLE-3 and hybrid with torch's profiler",
                        seconds=150,
                        limit=570,
                    ),
                )
            ),
        ),
        clients=(16,),
    ),
    Trip(
        number=3,
        asks="What changes with 64 clients?",
        commands=(
            Command(
                phases=(
                    _unpack(),
                    Phase(
                        name="replay:none+suffix+hybrid",
                        does="SQL agents and coding agents with 64 clients",
                        seconds=220,
                        limit=320,
                    ),
                    Phase(
                        name="replay:eagle3+ngram",
                        does="the same of SGLang's EAGLE-3 and NGRAM",
                        seconds=180,
                        limit=570,
                    ),
                )
            ),
        ),
        clients=(64,),
    ),
    Trip(
        number=4,
        asks="What does a 32B model gain?",
        commands=(
            Command(
                phases=(
                    _unpack(),
                    *(
                        Phase(name=f"replay:{name}", does="one 32B server at a time", seconds=115, limit=60 + 130 * i)
                        for i, name in enumerate(("none", "suffix", "hybrid", "eagle3"), start=1)
                    ),
                )
            ),
        ),
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
        if not {phase.name for command in one.commands for phase in command.phases} <= done:
            return one
    return None
