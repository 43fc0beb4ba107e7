"""Expected speed-up over plain decoding at a number of clients, under a cost profile.

Simulated servers (agentspec.simulation) serve the recorded drafts with the step times of the profile, once with
agentspec's controller and once without drafts. The speed-up is the ratio of their tokens per second, prefills included.
It is a range, from a server that has learnt nothing (*cold*) to one that has learnt the log (*warm*). Each of these is
a range of its own:

    1. The recorded calls are served in the order in which they were recorded. If they have more tokens than are worth
       simulating, some of them are served: those whose accept lengths are, in order of size, at even distances. Long
       calls are first cut into pieces that follow each other.
    2. Steps take the times of the profile's points of that batch size, and its costs of serving besides verification.
    3. Both ends are widened by the possible difference between the accept lengths of future work and of the log, and
       between the step times of a server and of the profile: 9 in 10 speed-ups should be within the range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.measures.intervals import ratio
from agentspec.analysis.measures.profile_spread import profile_spread
from agentspec.analysis.measures.states import Recorded
from agentspec.scheduling import ControlConfig, ControllerName, Profile, make_controller
from agentspec.simulation import Arrivals, Metrics, ServerConfig, measure, ordered_requests, simulate
from agentspec.simulation.acceptance import Acceptance, walk

CONTROLLER: ControllerName = "goodput"
DRAFT_SECONDS = 20e-6
"""The time to draft for one row on the CPU, where the profile lacks it; see evals/results/engine/bench.md."""
ROUNDS = 4
"""The least number of requests per client."""
SIMULATED_TOKENS = 5_000
"""At most about this many tokens are simulated per client. A step takes as long to simulate for few clients as for many,
and the figures are stable long before."""


def speedup_row(
    name: str, profile: Profile, concurrency: int, states: Mapping[str, Recorded], *, width: int, seed: int = 0
) -> dict[str, Any]:
    """The range at one number of clients that each send one request after another, from the recorded drafts of "cold"
    and, if possible, "warm", with at most `width` tokens per row."""
    found = {state: _range(profile, concurrency, recorded, width, seed) for state, recorded in states.items()}
    return {
        "profile": name,
        "concurrency": concurrency,
        "width": width,
        "controller": CONTROLLER,
        "low": min(of["low"] for of in found.values()),
        "high": max(of["high"] for of in found.values()),
        "cold": found.get("cold"),
        "warm": found.get("warm"),
    }


def _range(profile: Profile, concurrency: int, recorded: Recorded, width: int, seed: int) -> dict[str, Any]:
    spread = profile_spread(profile, concurrency)
    lengths = recorded.lengths(width)
    accept_length = ratio(lengths.tokens, lengths.steps, recorded.sessions, recorded.share)
    assert accept_length is not None
    interval = accept_length.interval()
    served = pieces(recorded.acceptance, SIMULATED_TOKENS // ROUNDS)
    prefilled = (served.prompt_tokens - served.cached_tokens).astype(np.float64)
    tokens = np.diff(served.starts).astype(np.float64)
    steps = walk(served, width, 0.0).call_steps.astype(np.float64)
    chosen = representative(tokens, steps, prefilled, SIMULATED_TOKENS * concurrency)
    if len(chosen) < len(served):
        served = selected(served, chosen)
    plain, drafted = (_served(profile, concurrency, served, width, seed, drafts=drafts) for drafts in (False, True))
    speedup = drafted.throughput / plain.throughput
    below, above = (abs(interval[end] / interval["mean"] - 1.0) for end in ("low", "high"))
    return {
        "outputs": recorded.outputs,
        "accept_length": round(drafted.steps.accept_length, 3),
        "low": round(speedup * (1.0 - min(math.hypot(below, spread), 0.9)), 3),
        "high": round(speedup * (1.0 + math.hypot(above, spread)), 3),
    }


def pieces(acceptance: Acceptance, longest: int) -> Acceptance:
    """The calls cut into pieces of at most this number of tokens. A piece's prompt has the pieces before it, and all
    pieces of a call compute the same part of its prompt."""
    counts = np.diff(acceptance.starts)
    if counts.max(initial=0) <= longest:
        return acceptance
    parts = -(-counts // longest)
    owner = np.repeat(np.arange(len(counts)), parts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)
    before = number * counts[owner] // parts[owner]
    new = acceptance.prompt_tokens - acceptance.cached_tokens
    prompts = acceptance.prompt_tokens[owner] + before
    return replace(
        acceptance,
        prompt_tokens=prompts.astype(np.int32),
        cached_tokens=(prompts - np.maximum(new[owner] // parts[owner], 1)).astype(np.int32),
        starts=np.append(acceptance.starts[owner] + before, acceptance.starts[-1]),
    )


def representative(
    tokens: NDArray[np.float64], steps: NDArray[np.float64], prefilled: NDArray[np.float64], max_tokens: int
) -> NDArray[np.int64]:
    """Indexes of calls of about `max_tokens` tokens in total, ascending, that together have the accept length of all, and
    as many prompt tokens to compute for each output token.

    The calls are sorted by accept length and taken at even distances. Of the possible first calls, the one is used with
    which both figures are closest to those of all.
    """
    stride = math.ceil(tokens.sum() / max_tokens)
    order = np.argsort(tokens / steps, kind="stable")

    def difference(some: NDArray[np.int64]) -> float:
        total = tokens[some].sum() / tokens.sum()
        return float(sum(abs(part[some].sum() / (total * part.sum()) - 1.0) for part in (steps, prefilled)))

    return np.sort(min((order[first::stride] for first in range(min(stride, len(order)))), key=difference))


def selected(acceptance: Acceptance, calls: NDArray[np.int64]) -> Acceptance:
    """The calls of these indexes, in this order."""
    counts = np.diff(acceptance.starts)[calls]
    places = np.concatenate([np.arange(acceptance.starts[i], acceptance.starts[i + 1]) for i in calls])
    return replace(
        acceptance,
        prompt_tokens=acceptance.prompt_tokens[calls],
        cached_tokens=acceptance.cached_tokens[calls],
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        num_nodes=acceptance.num_nodes[places],
        estimates=acceptance.estimates[places],
        parents=acceptance.parents[places],
        accepted=acceptance.accepted[places],
    )


def _served(
    profile: Profile, concurrency: int, acceptance: Acceptance, width: int, seed: int, *, drafts: bool
) -> Metrics:
    """The metrics of serving all calls on a server that plans its steps with the profile."""
    arrivals = Arrivals(clients=concurrency)
    requests = ordered_requests(acceptance, arrivals, max(len(acceptance), ROUNDS * concurrency), seed)
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
