"""The drafts of servers in two states, recorded at every position of a part of the measured calls.

    cold    has learnt nothing at first, and learns each output when it is finished
    warm    has learnt the outputs of other sessions before, and goes on learning

Drafts at positions that a replay skips cost only time. Estimates learn only from the first token after each position,
so the results may differ by a few per cent from those of a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentspec.analysis.measures.replays import Sampled, engine_config, learn
from agentspec.analysis.replay.traces import Call
from agentspec.config import EngineConfig
from agentspec.engine import Engine
from agentspec.simulation.acceptance import Acceptance, concatenated
from agentspec.simulation.recording import record_acceptance

MAX_WIDTH = 32
"""Tokens per row, the root included."""
_MIN_PROBABILITY = 0.1
"""The least probability of a draft token under the paper's rule, as in agentspec.analysis.replay."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """The drafts for all calls with at least two tokens, in the order in which the calls were served."""

    acceptance: Acceptance
    sessions: tuple[str, ...]
    """[n], the session of each call."""
    outputs: int
    """Cold: the number of outputs served. Warm: the mean number of outputs learnt before."""


def record_cold(
    sampled: Sampled,
    alpha: float | None,
    budget_bytes: int,
    on_call: Callable[[], object] = lambda: None,
    *,
    clients: int = 1,
) -> Recorded | None:
    """The drafts of a server that has learnt nothing at first; None where no output has two tokens.

    Args:
        sampled: The calls to serve, in their order.
        alpha: The alpha of the paper's rule; None for the calibrated rule.
        budget_bytes: The engine's memory budget.
        on_call: Called after each call.
        clients: The number of calls that are answered at the same time; unfinished ones have not been learnt.
    """
    calls = [call for call in sampled.measured if len(call.output) > 1]
    if not calls:
        return None
    # Answers end in the order in which they start, one per unit of time.
    times = [(float(i), i + clients - 0.5) for i in range(len(calls))] if clients > 1 else None
    acceptance = record_acceptance(
        "cold", calls, _config(alpha, budget_bytes), times=times, on_call=lambda number: on_call()
    )
    return Recorded(acceptance, _sessions(calls), len(calls))


def record_warm(
    sampled: Sampled, alpha: float | None, budget_bytes: int, on_call: Callable[[], object] = lambda: None
) -> Recorded | None:
    """The drafts of a server that has learnt the other sessions; None where no output has two tokens or there is no
    other session. The arguments are those of record_cold()."""
    parts, served, learnt_before = [], [], []
    for learnt, indexes in sampled.parts():
        chosen = [sampled.measured[i] for i in indexes if len(sampled.measured[i].output) > 1]
        if chosen:
            engine = Engine(_config(alpha, budget_bytes))
            learn(engine, learnt)
            parts.append(record_acceptance("warm", chosen, engine=engine, on_call=lambda number: on_call()))
            served += chosen
            learnt_before.append(len(learnt))
    if not parts:
        return None
    return Recorded(concatenated("warm", parts), _sessions(served), round(float(np.mean(learnt_before))))


def part_of(sampled: Sampled, max_tokens: int, max_prompt_tokens: int) -> Sampled:
    """The first calls of the draw that together keep to the limits on output and prompt tokens; at least one call."""
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
    config = engine_config(MAX_WIDTH, budget_bytes)
    if alpha is None:
        return config
    return replace(config, rule="suffixdecoding", alpha=alpha, min_token_prob=_MIN_PROBABILITY)


def _sessions(calls: Sequence[Call]) -> tuple[str, ...]:
    return tuple(call.session for call in calls)
