"""Expected speed-up over plain decoding at a number of clients, under a cost profile.

Simulated servers (agentspec.simulation) serve the recorded drafts with the step times of the profile, once with
agentspec's controller and once without drafts. The speed-up is the ratio of their tokens per second, prefills included.
It is a range, from a server that has learnt nothing (*cold*) to one that has learnt the log (*warm*). Each of these is
a range of its own:

    1. Every recorded call is served, in the order in which it was recorded.
    2. Steps take the times of the profile's points of that batch size, and its costs of serving besides verification.
    3. Both ends are widened by the possible difference between the accept lengths of future work and of the log, and
       between the step times of a server and of the profile: 9 in 10 speed-ups should be within the range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from agentspec.analysis.measures.bootstrap import ratio_interval
from agentspec.analysis.measures.grid import walk
from agentspec.analysis.measures.profile_spread import profile_spread
from agentspec.analysis.measures.states import Recorded
from agentspec.scheduling import ControlConfig, ControllerName, Profile, make_controller
from agentspec.simulation import Arrivals, Metrics, ServerConfig, measure, ordered_requests, simulate
from agentspec.simulation.acceptance import Acceptance

CONTROLLER: ControllerName = "goodput"
DRAFT_SECONDS = 20e-6
"""The time to draft for one row on the CPU, where the profile lacks it; see evals/results/engine/bench.md."""
_ROUNDS = 4
"""The least number of requests per client."""


def speedup_row(
    name: str, profile: Profile, concurrency: int, states: Mapping[str, Recorded], *, width: int, seed: int = 0
) -> dict[str, Any]:
    """The range at one number of clients.

    Args:
        name: The profile's name.
        profile: The costs of steps.
        concurrency: The number of clients that each send one request after another, >= 1.
        states: The recorded drafts of "cold" and, if possible, "warm".
        width: The largest number of tokens per row, the root included.
        seed: Seed for the choice of requests that are sent again.
    """
    found = {state: _range(profile, concurrency, recorded, width, seed) for state, recorded in states.items()}
    return {
        "profile": name,
        "concurrency": concurrency,
        "controller": CONTROLLER,
        "low": min(of["low"] for of in found.values()),
        "high": max(of["high"] for of in found.values()),
        "cold": found.get("cold"),
        "warm": found.get("warm"),
    }


def _range(profile: Profile, concurrency: int, recorded: Recorded, width: int, seed: int) -> dict[str, Any]:
    acceptance = recorded.acceptance
    spread = profile_spread(profile, concurrency)
    plain, drafted = (_served(profile, concurrency, acceptance, width, seed, drafts=drafts) for drafts in (False, True))
    steps = walk(acceptance, width, 0.0).call_steps.astype(np.float64)
    tokens = np.diff(acceptance.starts).astype(np.float64)
    interval = ratio_interval(tokens, steps, recorded.sessions, seed)
    assert interval is not None
    speedup = drafted.throughput / plain.throughput
    # The log is one draw of sessions, and future work is another.
    below, above = (math.sqrt(2.0) * abs(interval[end] / interval["mean"] - 1.0) for end in ("low", "high"))
    return {
        "outputs": recorded.outputs,
        "accept_length": round(drafted.steps.accept_length, 3),
        "low": round(speedup * (1.0 - min(math.hypot(below, spread), 0.9)), 3),
        "high": round(speedup * (1.0 + math.hypot(above, spread)), 3),
    }


def _served(
    profile: Profile, concurrency: int, acceptance: Acceptance, width: int, seed: int, *, drafts: bool
) -> Metrics:
    """The metrics of serving all calls on a server that plans its steps with the profile."""
    arrivals = Arrivals(clients=concurrency)
    requests = ordered_requests(acceptance, arrivals, max(len(acceptance), _ROUNDS * concurrency), seed)
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    measured = profile.plain is not None and profile.speculative is not None
    costs = profile.speculative if drafts else profile.plain
    config = ServerConfig(
        max_running=concurrency,
        kv_tokens=max(1 << 20, (longest + 2 * acceptance.max_width) * concurrency),
        max_width=min(width, acceptance.max_width),
        # Without graphs a step may have any width.
        widths=() if profile.key.graphs == "none" else profile.widths,
        draft_seconds=DRAFT_SECONDS if drafts and not measured else 0.0,
        costs=costs if measured else None,
        plain=measured and not drafts,
    )
    control = ControlConfig(controller=CONTROLLER) if drafts else ControlConfig(controller="fixed", length=0)
    return measure(simulate(requests, profile, config, make_controller(control, profile)), arrivals)
