"""Replays recorded calls through the engine once, and keeps its draft at every place of every output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay.engine_system import as_draft, remember
from agentspec.analysis.replay.teacher_forcing import accepted_nodes
from agentspec.analysis.replay.traces import Call
from agentspec.config import EngineConfig
from agentspec.engine import Engine
from agentspec.simulation.acceptance import Acceptance

_ID = "recording"


def _nothing(number: int) -> None:
    """The default callback, which ignores progress."""


def record_acceptance(
    name: str,
    calls: Sequence[Call],
    config: EngineConfig | None = None,
    *,
    warm: Iterable[Call] = (),
    on_call: Callable[[int], object] = _nothing,
) -> Acceptance:
    """Learns the calls of `warm`, then drafts after every output token of `calls`, one call after another.

    A call drafts from all calls before it, as if they had been answered. A server that answers many calls at a time has
    learnt fewer. Estimates learn online only from the first token after each place, because the next place has a new
    draft.

    Args:
        name: Name of the result.
        calls: Calls in the order in which they were sent.
        config: The engine's configuration. A place has at most max_draft_tokens drafted nodes. None: the defaults.
        warm: Calls that were answered before.
        on_call: Called with the number of finished calls.
    """
    engine = Engine(config or EngineConfig())
    for call in warm:
        remember(engine, call)
    width = engine.config.max_draft_tokens + 1
    num_places = sum(len(call.output) - 1 for call in calls)
    num_nodes = np.ones(num_places, np.uint8)
    estimates = np.zeros((num_places, width), np.float32)
    parents = np.full((num_places, width), -1, np.int8)
    accepted = np.zeros((num_places, width), np.uint8)
    place = 0
    for number, call in enumerate(calls, 1):
        truth = call.output.tolist()
        engine.open(_ID, call.prompt)
        for done in range(1, len(truth)):
            engine.extend(_ID, call.output[done - 1 : done])
            row = engine.draft([_ID]).row(0)
            n = len(row.tokens)
            num_nodes[place] = n
            estimates[place, :n] = row.estimates
            parents[place, :n] = row.parents
            for node in accepted_nodes(as_draft(row), truth[done:-1]):
                accepted[place, node + 1 :] += 1
            place += 1
        engine.extend(_ID, call.output[-1:])
        engine.close(_ID)
        on_call(number)
    lengths = [len(call.output) - 1 for call in calls]
    return Acceptance(
        name=name,
        prompt_tokens=np.array([sum(map(len, call.prompt_parts)) for call in calls], np.int32),
        cached_tokens=_cached_tokens(calls),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        num_nodes=num_nodes,
        estimates=estimates,
        parents=parents,
        accepted=accepted,
    )


def _cached_tokens(calls: Sequence[Call]) -> NDArray[np.int32]:
    """[n], number of tokens that each prompt shares with the prompt and output of the previous call of its session. At
    least one token of a prompt is left to compute."""
    before: dict[tuple[str, str, str], NDArray[np.int32]] = {}
    cached = np.zeros(len(calls), np.int32)
    for i, call in enumerate(calls):
        session = (call.session, call.task, call.run)
        prompt = call.prompt
        if session in before:
            n = min(len(prompt), len(before[session]))
            differs = np.flatnonzero(prompt[:n] != before[session][:n])
            cached[i] = min(int(differs[0]) if len(differs) else n, len(prompt) - 1)
        before[session] = np.concatenate([prompt, call.output])
    return cached
