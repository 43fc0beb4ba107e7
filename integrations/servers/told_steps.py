"""Reads the step times that a server reports while it is profiled (`AGENTSPEC_PROFILING`), and takes their medians."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast, overload

from agentspec.errors import ServerError
from agentspec.integrations.servers.server import RunningServer
from agentspec.integrations.servers.serving_costs import Cell, Steps
from agentspec.progress import say
from agentspec.scheduling import MeasuredPoint, ProfileKey

LEAST_STEPS = 3
"""Least number of steps from which a median is taken."""
_MOST_TRIES = 3
"""Maximum number of attempts for a cell. On a busy machine the requests of one call may still start one by one."""
Told = Literal["steps", "drafts", "yields", "chains"]
"""Verify steps as (rows, width, context, seconds), a draft model's drafts as (rows, passes, context, seconds), whole steps
as (rows, width, seconds, generated tokens), or a draft model's chains as (probabilities, accepted tokens)."""


def measured(
    server: RunningServer, cells: Sequence[Cell], tokens: int, rng: random.Random, told: Told = "steps"
) -> list[MeasuredPoint]:
    """The median step or draft of each cell and width. Cells with too few full batches are left out with a message.

    A draft's point is that of one pass, which computes one token for each row.
    """
    found = []
    vocabulary = vocabulary_of(server)
    # The first steps pay for lazy set-up.
    for number, cell in enumerate([cells[0], *cells]):
        steps: list[tuple[int, int, int, float]] = []
        for _ in range(_MOST_TRIES):
            since = _number(server, told)
            prompts = [[rng.randrange(vocabulary) for _ in range(cell.length)] for _ in range(cell.rows)]
            # One call, so that the rows begin together.
            sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
            server.post("/generate", {"input_ids": prompts, "sampling_params": sampling})
            steps += [step for step in _latest(server, told, since) if step[0] == cell.rows and step[3] > 0]
            if len(steps) >= LEAST_STEPS:
                break
        if not number:
            continue
        if len(steps) < LEAST_STEPS:
            say(f"  {cell.rows} rows of {cell.length}: {len(steps)} {told} together, left out; try more --tokens")
            continue
        for width in sorted({step[1] for step in steps}):
            same = [step for step in steps if step[1] == width]
            if len(same) < LEAST_STEPS:
                continue
            context, seconds = (statistics.median(step[place] for step in same) for place in (2, 3))
            say(
                f"  {'width' if told == 'steps' else 'passes'} {width}, {cell.rows} rows of {cell.length}: "
                f"{seconds * 1e3:.2f} ms ({len(same)} of them)"
            )
            if told == "drafts":
                width, seconds = 1, seconds / width
            found.append(MeasuredPoint(cell.rows, width, round(context), seconds))
    return found


@overload
def told_since_then(
    server: RunningServer, told: Literal["steps", "drafts", "yields"] = "steps"
) -> Callable[[], Steps]: ...


@overload
def told_since_then(
    server: RunningServer, told: Literal["chains"]
) -> Callable[[], Sequence[tuple[list[float], int]]]: ...


def told_since_then(server: RunningServer, told: Told = "steps") -> Callable[[], Sequence[Any]]:
    """Returns a function that returns the steps since its last call."""
    seen = _number(server, told)

    def new() -> Sequence[Any]:
        nonlocal seen
        steps = _latest(server, told, seen)
        seen += len(steps)
        return steps

    return new


def _control(server: RunningServer) -> dict[str, Any]:
    state = server.agentspec_state()
    control = (state or {}).get("control", {})
    if "steps" not in control:
        raise ServerError(
            f"the server at {server.url} must tell how long its steps take, but does not; start it with "
            "AGENTSPEC_PROFILING=1 and --speculative-algorithm AGENTSPEC --agentspec-baseline fixed"
        )
    return cast(dict[str, Any], control)


def _number(server: RunningServer, told: Told) -> int:
    return int(_control(server)[f"num_{told}"])


def _latest(server: RunningServer, told: Told, since: int) -> list[Any]:
    """All steps or drafts after the first `since`, as far as the server still keeps them."""
    control = _control(server)
    new = int(control[f"num_{told}"]) - since
    return [tuple(one) for one in control[told][-new:]] if new > 0 else []


def key_of(server: RunningServer) -> ProfileKey:
    return ProfileKey(**_control(server)["profile_key"])


def peaks_of(server: RunningServer) -> dict[str, float]:
    """The device's peak figures and the model's hidden size, as Profile names them."""
    control = _control(server)
    return {name: control[name] for name in ("peak_flops", "peak_bandwidth", "hidden_size") if name in control}


def rest_of(server: RunningServer) -> float:
    """Seconds of a step besides its verification and the draft model."""
    return float(_control(server)["rest_ms"]) / 1e3


def vocabulary_of(server: RunningServer) -> int:
    found = server.get("/model_info")
    config = Path(found["model_path"]) / "config.json"
    try:
        return int(json.loads(config.read_text(encoding="utf-8"))["vocab_size"])
    except (OSError, KeyError, ValueError):
        # Every tokenizer has at least this many tokens.
        return 256
