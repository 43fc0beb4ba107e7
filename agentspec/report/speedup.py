"""Expected speed-up over plain decoding at a number of clients, under a cost profile.

Recorded drafts are served by simulated servers (agentspec.simulation) whose steps take the profile's seconds, once with
the controller that agentspec serves with and once without drafts; the ratio of their tokens a second, prefills
included, is the speed-up. It is given as a range: from a server that knows nothing to one that has learnt the log, over
two draws of requests, widened by what the accept length's interval leaves open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentspec.control import ControlConfig, ControllerName, Profile, make_controller
from agentspec.simulation import Arrivals, ServerConfig, draw_requests, measure, simulate
from agentspec.simulation.acceptance import Acceptance

CONTROLLER: ControllerName = "goodput"
DRAFT_SECONDS = 20e-6
"""Of drafting for one row on the CPU; see evals/results/engine/bench.md."""
_SEEDS = (0, 1)
_STEPS = 400
"""Decoding steps of a plain server, about."""


def speedup_row(
    name: str,
    profile: Profile,
    concurrency: int,
    acceptances: Sequence[Acceptance],
    widen: float,
    *,
    width: int,
    draft_seconds: float = DRAFT_SECONDS,
    seed: int = 0,
) -> dict[str, Any]:
    """The range at one number of clients.

    Args:
        name: The profile's.
        profile: How long steps take.
        concurrency: Clients that ask one request after another, >= 1.
        acceptances: Of a cold and, if there is one, a warm server.
        widen: Share by which the accept length may be off.
        width: Tokens a row at most, its root included.
        draft_seconds: Of drafting for a row.
        seed: Of the requests drawn.
    """
    ratios, length = [], 1.0
    for acceptance in acceptances:
        for draw in _SEEDS:
            plain, _ = _throughput(profile, concurrency, acceptance, 0, width, 0.0, seed + draw)
            drafted, length = _throughput(profile, concurrency, acceptance, None, width, draft_seconds, seed + draw)
            ratios.append(drafted / plain)
    low, high = min(ratios), max(ratios)
    return {
        "profile": name,
        "concurrency": concurrency,
        "low": round(1.0 + (low - 1.0) * (1.0 - widen), 3) if low > 1 else round(low, 3),
        "high": round(1.0 + (high - 1.0) * (1.0 + widen), 3) if high > 1 else round(high, 3),
        "accept_length": round(length, 3),
        "controller": CONTROLLER,
    }


def _throughput(
    profile: Profile,
    concurrency: int,
    acceptance: Acceptance,
    fixed: int | None,
    width: int,
    draft_seconds: float,
    seed: int,
) -> tuple[float, float]:
    """Tokens a second, and tokens a row and decoding step."""
    mean = max(float(acceptance.output_tokens.mean()), 1.0)
    requests_a_client = max(round(_STEPS / mean), 2)
    arrivals = Arrivals(clients=concurrency)
    requests = draw_requests(acceptance, arrivals, concurrency * requests_a_client, seed)
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    config = ServerConfig(
        max_running=concurrency,
        kv_tokens=max(1 << 20, (longest + 2 * acceptance.max_width) * concurrency),
        max_width=min(width, acceptance.max_width),
        widths=profile.widths,
        draft_seconds=draft_seconds,
    )
    control = ControlConfig(controller=CONTROLLER) if fixed is None else ControlConfig(controller="fixed", length=fixed)
    log = simulate(requests, profile, config, make_controller(control, profile))
    metrics = measure(log, arrivals)
    return metrics.throughput, metrics.steps.accept_length
