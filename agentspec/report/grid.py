"""Accept lengths over alpha, width and tau, from drafts recorded at every place of a part of the measured calls.

A suffix draft is taken where its score, the tokens that its estimates promise, exceeds tau (SuffixDecoding, section
4.2); elsewhere nothing is drafted here, and a server with a model drafter would ask that. Rows of `width` tokens hold
their root. Drafts at places that a replay skips cost nothing but time; estimates learn from the first token behind each
place only, so that figures may differ by a few per cent from those of a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agentspec.config import EngineConfig
from agentspec.engine import Engine
from agentspec.report.replays import Sampled, engine_config, learn
from agentspec.simulation.acceptance import Acceptance, concatenated
from agentspec.simulation.recording import record_acceptance

WIDTHS = (4, 8, 16, 32)
TAUS = (0.0, 1.0, 2.0, 4.0)
ALPHAS: tuple[float | None, ...] = (None, 1.0, 2.0, 4.0)
"""None: the calibrated rule, which has no alpha."""
_MIN_PROBABILITY = 0.1
"""Of the paper's rule, as agentspec.replay has it."""


@dataclass(frozen=True, slots=True)
class Walk:
    """What serving recorded calls with one setting takes."""

    tokens: int
    steps: int
    drafted: int
    accepted: int
    drafting_steps: int
    """Those with a draft above tau."""


def record(
    sampled: Sampled, alpha: float | None, budget_bytes: int, on_call: Callable[[], object] = lambda: None
) -> tuple[Acceptance | None, Acceptance | None]:
    """Cold and warm acceptance of the measured calls; None where no output has two tokens, or nothing else to learn."""
    config = _config(alpha, budget_bytes)

    def told(number: int) -> None:
        on_call()

    calls = [call for call in sampled.measured if len(call.output) > 1]
    if not calls:
        return None, None
    cold = record_acceptance("cold", calls, config, on_call=told)
    parts = []
    for learnt, indexes in sampled.parts():
        chosen = [sampled.measured[i] for i in indexes if len(sampled.measured[i].output) > 1]
        if chosen:
            engine = Engine(config)
            learn(engine, learnt)
            parts.append(record_acceptance("warm", chosen, engine=engine, on_call=told))
    return cold, concatenated("warm", parts) if parts else None


def walk(acceptance: Acceptance, width: int, tau: float) -> Walk:
    """Serves every call by itself, all at once."""
    width = min(width, acceptance.max_width)
    scores = acceptance.estimates[:, 1:width].sum(axis=1)
    nodes = np.minimum(acceptance.num_nodes.astype(np.int64), width) - 1
    nodes[scores <= tau] = 0
    accepted = acceptance.accepted[np.arange(len(nodes)), nodes].astype(np.int64)
    places, ends = acceptance.starts[:-1].copy(), acceptance.starts[1:]
    steps = drafted = total = drafting = 0
    active = places < ends
    while active.any():
        at = places[active]
        steps += len(at)
        drafted += int(nodes[at].sum())
        drafting += int((nodes[at] > 0).sum())
        total += int(accepted[at].sum())
        places[active] = at + accepted[at] + 1
        active = places < ends
    return Walk(int(acceptance.starts[-1]), steps, drafted, total, drafting)


def grid_rows(
    alpha: float | None, cold: Acceptance, warm: Acceptance | None, widths: Sequence[int] = WIDTHS
) -> list[dict[str, Any]]:
    """A row for each width and tau; drafted tokens and shares are those of the warm server, if there is one."""
    rows = []
    for width in widths:
        for tau in TAUS:
            first = walk(cold, width, tau)
            later = walk(warm, width, tau) if warm is not None else None
            shown = later or first
            rows.append(
                {
                    "alpha": alpha,
                    "width": width,
                    "tau": tau,
                    "rule": "calibrated" if alpha is None else "suffixdecoding",
                    "accept_length_cold": _length(first),
                    "accept_length_warm": _length(later) if later else None,
                    "drafted_per_step": round(shown.drafted / max(shown.steps, 1), 4),
                    "acceptance_rate": round(shown.accepted / shown.drafted, 4) if shown.drafted else None,
                    "draft_share": round(shown.drafting_steps / max(shown.steps, 1), 4),
                }
            )
    return rows


def part_of(sampled: Sampled, max_tokens: int, max_prompt_tokens: int) -> Sampled:
    """The first sessions of the draw, as many as have at most so many output and prompt tokens; at least one call."""
    tokens = prompts = 0
    for number, call in enumerate(sampled.measured):
        tokens += len(call.output)
        prompts += sum(map(len, call.prompt_parts))
        if number and (tokens > max_tokens or prompts > max_prompt_tokens):
            break
    else:
        number = len(sampled.measured)
    return replace(
        sampled,
        measured=sampled.measured[:number],
        labels=sampled.labels[:number],
        files=sampled.files[:number],
    )


def _config(alpha: float | None, budget_bytes: int) -> EngineConfig:
    config = engine_config(max(WIDTHS), budget_bytes)
    if alpha is None:
        return config
    return replace(config, rule="suffixdecoding", alpha=alpha, min_token_prob=_MIN_PROBABILITY)


def _length(walked: Walk) -> float:
    return round(walked.tokens / max(walked.steps, 1), 4)
