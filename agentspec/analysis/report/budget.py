"""How many calls a report replays, and how much of each: as much as its time and memory allow.

Rates are measured on a few calls, and the time of the whole report is estimated with them for smaller and smaller
numbers of calls, until the time suffices. If too few would be left, a part of each output is replayed. Only these two
numbers depend on the machine. The figures of the same calls and parts do not.

Estimates may be wrong, so the report also looks at the clock between its parts and leaves some out if it is late.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentspec.analysis.logs.log import Log
from agentspec.analysis.measures.replays import (
    Pass,
    Sampled,
    cold_passes,
    engine_config,
    is_crowd,
    num_orders,
    prepared,
    warm_passes,
)
from agentspec.analysis.measures.speedup import ROUNDS, SIMULATED_TOKENS
from agentspec.analysis.measures.states import MAX_WIDTH
from agentspec.analysis.replay.traces import Call
from agentspec.engine import Engine
from agentspec.simulation.recording import Drafts

_STEP = 1.2
"""The ratio of a number of calls to the next smaller one that is tried."""
_LEAST_OUTPUTS = 100
"""A part of each output is replayed rather than fewer outputs."""
_LEAST_TOKENS = 4000
"""Fewer outputs are replayed rather than fewer tokens in all."""
_FEWEST_OUTPUTS = 20
_LEAST_SHARE = 0.01
_PILOT_TOKENS = 6000
_PILOT_SHARE = 0.05
"""The share of the time for measuring rates, at about 50,000 tokens per second."""
_PILOT_SPEED = 50_000
_BYTES_A_TOKEN = 1000
"""Memory of all drafts that are kept for an output token at the same time."""
_SHARE = 0.8
"""The share of the time to plan with, because some work is not in the estimate."""
_SERVED = 0.7
"""The time of the two passes that are served step by step, per token, in times of recording its draft."""
_STEPS, _STEP_TIME, _ROW_TIME = 2.8, 9.0, 0.3
"""The simulated steps per token and client, and the time of one and of each of its rows, in times of recording a
token's draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a report may take."""

    seconds: float
    """The time of the whole report."""
    memory_bytes: int
    """Of the recorded drafts."""
    started: float
    """The value of time.process_time() at the report's beginning."""

    @property
    def left(self) -> float:
        return self.seconds - (time.process_time() - self.started)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is replayed."""

    calls: int
    share: float = 1.0
    """The share of each output."""


@dataclass(frozen=True, slots=True)
class _Rates:
    """Measured seconds."""

    learn_all: float
    """To learn all outputs once."""
    index: float
    """To index a prompt token."""
    record: float
    """To record the draft of an output token."""


def planned(log: Log, budget: Budget, concurrency: Sequence[int], profiles: int, engine_bytes: int) -> Plan:
    """What to replay of the log within the budget, where steps are simulated for these numbers of clients and profiles,
    and an engine may take `engine_bytes`."""
    pilot_tokens = int(min(_PILOT_TOKENS, max(_PILOT_SHARE * budget.seconds * _PILOT_SPEED, 500)))
    rates = _measured_rates(log, engine_bytes, pilot_tokens)
    left = _SHARE * budget.seconds - (time.process_time() - budget.started)

    def fits(plan: Plan) -> bool:
        drawn = log.drawn(plan.calls)
        sampled = log.sampled.chosen(drawn).shortened(plan.share, log.draws[drawn])
        tokens, _ = _sums(sampled)
        return (
            tokens * num_orders(sampled) * _BYTES_A_TOKEN <= budget.memory_bytes
            and _seconds(log.sampled, sampled, rates, concurrency, profiles) <= left
        )

    plans = list(_plans(log))
    return next(filter(fits, plans), plans[-1])


def _plans(log: Log) -> Iterator[Plan]:
    """What may be replayed, most first."""
    total, num_tokens = len(log.sampled.measured), _sums(log.sampled)[0]
    calls = total
    yield Plan(calls)
    while calls > _LEAST_OUTPUTS:
        calls = max(int(calls / _STEP), _LEAST_OUTPUTS)
        yield Plan(calls)
    share, tokens = 1.0, num_tokens * calls / max(total, 1)
    while share * tokens > _LEAST_TOKENS and share > _LEAST_SHARE:
        share /= _STEP
        yield Plan(calls, share)
    while calls > _FEWEST_OUTPUTS:
        calls = max(int(calls / _STEP), _FEWEST_OUTPUTS)
        yield Plan(calls, share)


def _measured_rates(log: Log, engine_bytes: int, pilot_tokens: int) -> _Rates:
    clock = time.process_time
    sampled = log.sampled
    config = engine_config(MAX_WIDTH, engine_bytes)
    (first,) = (warm_passes(sampled, 0) or cold_passes(sampled, 1, 0))[:1]
    began = clock()
    (server,) = prepared(sampled, [first], config)
    learning = clock() - began
    pilot = _pilot(log, first, pilot_tokens)
    tokens, prompts = _sums(pilot)
    engine = Engine(replace(config, budget_bytes=0))
    began = clock()
    for i, call in enumerate(pilot.measured):
        engine.open(str(i), call.prompt)
        engine.close(str(i), keep=False)
    indexing = clock() - began
    engine, drafts = Engine(config), Drafts(tokens, MAX_WIDTH)
    engine.load_segments("", server.segments)
    began = clock()
    for call in pilot.measured:
        drafts.record(engine, call, keep=False)
    recording = max(clock() - began - indexing, 0.0)
    num_learnt = max(len(first.learnt), 1)
    return _Rates(
        learn_all=learning * len(sampled.outputs) / num_learnt,
        index=indexing / max(prompts, 1),
        record=recording / max(tokens, 1),
    )


def _pilot(log: Log, server: Pass, most: int) -> Sampled:
    """The calls of a pass that are drawn first, until they have about this number of tokens. They are parts of long
    outputs."""
    served = set(server.served.tolist())
    places, measured = log.sampled.places.tolist(), log.sampled.measured
    indexes, tokens = [], 0
    for i in np.argsort(log.draws, kind="stable").tolist():
        if tokens < most and places[i] in served:
            indexes.append(i)
            tokens += len(measured[i].output)
    chosen = np.array(sorted(indexes), np.int64)
    return log.sampled.chosen(chosen).shortened(min(1.0, most / max(tokens, 1)), log.draws[chosen])


def _seconds(whole: Sampled, sampled: Sampled, rates: _Rates, concurrency: Sequence[int], profiles: int) -> float:
    """The estimated seconds of all passes and simulations."""
    orders = num_orders(sampled)
    tokens, prompts = _sums(sampled)
    opened = _opened(whole, sampled)
    crowds = sum(is_crowd(sampled, clients) for clients in concurrency)
    learning = (orders * (1 + crowds) + len(warm_passes(sampled, 0)) + 2) * rates.learn_all
    indexing = ((orders + 2) * opened + orders * crowds * prompts) * rates.index
    # Each client sends a few requests, whatever the number of calls.
    longest = min(tokens / max(len(sampled.measured), 1), SIMULATED_TOKENS / ROUNDS)
    simulated: float = sum(
        _STEPS
        * min(max(tokens, longest * ROUNDS * clients), SIMULATED_TOKENS * clients)
        / clients
        * (_STEP_TIME + _ROW_TIME * clients)
        for clients in concurrency
    )
    recording = (orders + 1 + orders * crowds + _SERVED) * rates.record
    return learning + indexing + recording * tokens + profiles * simulated * rates.record


def _opened(whole: Sampled, sampled: Sampled) -> int:
    """The number of prompt tokens that a pass indexes. A call's prompt is indexed from where the session's call before
    it ends, if it goes on there."""
    new: dict[str, int] = {}
    for call, cached in zip(whole.measured, whole.cached.tolist(), strict=True):
        new[call.session] = new.get(call.session, 0) + _num_prompt_tokens(call) - cached
    full: dict[str, int] = {}
    for call in sampled.measured:
        full[call.session] = full.get(call.session, 0) + _num_prompt_tokens(call)
    return sum(min(new[session], tokens) for session, tokens in full.items())


def _sums(sampled: Sampled) -> tuple[int, int]:
    """The numbers of output tokens and of prompt tokens of the measured calls."""
    return sum(len(call.output) for call in sampled.measured), sum(map(_num_prompt_tokens, sampled.measured))


def _num_prompt_tokens(call: Call) -> int:
    return sum(map(len, call.prompt_parts))
