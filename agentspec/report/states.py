"""What servers in two states would draft, recorded at every place of a part of the measured calls.

    cold    begins with nothing and learns each output as it is finished
    warm    has learnt the outputs of other sessions before, and learns on

Drafts at places that a replay skips cost nothing but time; estimates learn from the first token behind each place only,
so that figures may differ by a few per cent from those of a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentspec.config import EngineConfig
from agentspec.engine import Engine
from agentspec.replay.traces import Call
from agentspec.report.replays import Sampled, engine_config, learn
from agentspec.simulation.acceptance import Acceptance, concatenated
from agentspec.simulation.recording import record_acceptance

MAX_WIDTH = 32
"""Tokens a row, the root included."""
_MIN_PROBABILITY = 0.1
"""Of the paper's rule, as agentspec.replay has it."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """Calls with two tokens or more, each once, in the order in which they were served."""

    acceptance: Acceptance
    sessions: tuple[str, ...]
    """[n], of each call."""
    outputs: int
    """Cold: how many were served from nothing; warm: how many had been learnt before, on average."""


def record_cold(
    sampled: Sampled,
    alpha: float | None,
    budget_bytes: int,
    on_call: Callable[[], object] = lambda: None,
    *,
    clients: int = 1,
) -> Recorded | None:
    """Of a server that begins with nothing; None where no output has two tokens.

    Args:
        sampled: What is served, and in which order.
        alpha: Of the paper's rule; None: the calibrated one.
        budget_bytes: Of the engine.
        on_call: Told of each call that is done.
        clients: So many calls are answered at a time; what is under way has not been learnt.
    """
    calls = [call for call in sampled.measured if len(call.output) > 1]
    if not calls:
        return None
    # Answers end in the order in which they begin, one in each unit of time.
    times = [(float(i), i + clients - 0.5) for i in range(len(calls))] if clients > 1 else None
    acceptance = record_acceptance(
        "cold", calls, _config(alpha, budget_bytes), times=times, on_call=lambda number: on_call()
    )
    return Recorded(acceptance, _sessions(calls), len(calls))


def record_warm(
    sampled: Sampled, alpha: float | None, budget_bytes: int, on_call: Callable[[], object] = lambda: None
) -> Recorded | None:
    """Of a server that has learnt the other sessions; None where no output has two tokens, or there is no other
    session. Arguments as of record_cold()."""
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
    config = engine_config(MAX_WIDTH, budget_bytes)
    if alpha is None:
        return config
    return replace(config, rule="suffixdecoding", alpha=alpha, min_token_prob=_MIN_PROBABILITY)


def _sessions(calls: Sequence[Call]) -> tuple[str, ...]:
    return tuple(call.session for call in calls)
