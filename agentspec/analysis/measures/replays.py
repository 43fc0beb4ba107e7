"""Serving the log again: which server has learnt what when it serves which call.

    cold    a server that has learnt nothing serves all sessions, one after another in random order
    warm    the sessions are dealt into four parts, and each part is served by a server that has learnt the other parts

Both servers learn each output when it is finished. Only some calls may be *measured*, which is to replay them with
their drafts. The other calls are learnt at their place, so the drafts of a measured call are those that it would have
if every call were replayed. The measured calls are the one sample that all figures of a report are of.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.calls import Labels
from agentspec.analysis.measures.intervals import Ratio, ratio
from agentspec.analysis.replay.engine_system import steps_of
from agentspec.analysis.replay.traces import Call
from agentspec.config import EngineConfig
from agentspec.engine import Engine

_PARTS = 4
_CROWD = 0.05
_LEAST_PART = 32
"""The least number of tokens of an output that are replayed, if it has as many."""
_CONVERSATION_BYTES = 48 << 20
"""Memory for the indexes of open sessions. Sessions are served one after another, so a few of them suffice."""


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """What is analysed: n measured calls among the m outputs of a log."""

    measured: tuple[Call, ...]
    """[n], in the order of the log."""
    labels: tuple[Labels, ...]
    """[n]"""
    files: tuple[str, ...]
    """[n]"""
    cached: NDArray[np.int32]
    """[n], the number of tokens at each prompt's beginning that the session's call before it computed."""
    places: NDArray[np.int64]
    """[n], the place of each measured call among the outputs."""
    outputs: tuple[Call, ...]
    """[m], all sampled outputs with the ends of their prompts, in the order of the log."""

    def chosen(self, indexes: NDArray[np.int64]) -> Sampled:
        """The same outputs, of which only these measured calls, by ascending index, are replayed."""
        return replace(
            self,
            measured=tuple(self.measured[i] for i in indexes),
            labels=tuple(self.labels[i] for i in indexes),
            files=tuple(self.files[i] for i in indexes),
            cached=self.cached[indexes],
            places=self.places[indexes],
        )

    def shortened(self, share: float, draws: NDArray[np.uint64]) -> Sampled:
        """The same calls, of whose outputs only this share in (0, 1] is replayed: a part at random, by `draws`, after
        the text before it. All outputs are cut in the same proportion, so long ones still count more than short
        ones. A part's share of the prompt is left to compute."""
        parts, cached = [], self.cached.copy()
        for i, call in enumerate(self.measured):
            size = len(call.output)
            kept = min(size, max(math.ceil(share * size), _LEAST_PART))
            start = int(draws[i] % np.uint64(size - kept + 1))
            if kept == size:
                parts.append(call)
                continue
            prompt = sum(map(len, call.prompt_parts))
            cached[i] = prompt + start - max(1, round((prompt - int(cached[i])) * kept / size))
            before = (*call.prompt_parts, call.output[:start])
            parts.append(replace(call, prompt_parts=before, output=call.output[start : start + kept]))
        return replace(self, measured=tuple(parts), cached=cached)

    def is_whole(self, index: int) -> bool:
        """Whether a measured call's output is replayed from beginning to end."""
        return len(self.measured[index].output) == len(self.outputs[self.places[index]].output)

    @property
    def share(self) -> float:
        """The share of the outputs that is measured."""
        return len(self.measured) / max(len(self.outputs), 1)

    def sessions(self) -> list[NDArray[np.int64]]:
        """The places of each session's outputs, by the first of them."""
        found: dict[str, list[int]] = {}
        for place, call in enumerate(self.outputs):
            found.setdefault(call.session, []).append(place)
        return [np.array(places, np.int64) for places in found.values()]


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """What one server learns at first, and what it serves then, as places among the outputs."""

    learnt: NDArray[np.int64]
    served: NDArray[np.int64]
    segments: tuple[NDArray[np.uint8], ...] = ()
    """The index of some of what it learns at first, see prepared()."""
    unsealed: NDArray[np.int64] | None = None
    """What it learns at first besides; None: everything."""


def cold_passes(sampled: Sampled, orders: int, seed: int) -> list[Pass]:
    """A pass for each of `orders` random orders of the sessions."""
    sessions = sampled.sessions()
    drawn = [np.random.default_rng([seed, order]).permutation(len(sessions)) for order in range(orders)]
    nothing = np.zeros(0, np.int64)
    return [Pass(nothing, np.concatenate([sessions[i] for i in order])) for order in drawn]


def warm_passes(sampled: Sampled, seed: int) -> list[Pass]:
    """A pass for each part of the sessions; none if there is only one session. Parts have about the same number of
    outputs, so that all of their servers have learnt about the same number."""
    sessions = sampled.sessions()
    if len(sessions) < 2:
        return []
    order = np.random.default_rng([seed, 77]).permutation(len(sessions))
    parts: list[list[int]] = [[] for _ in range(min(_PARTS, len(sessions)))]
    sizes = [0] * len(parts)
    for i in sorted(order, key=lambda i: -len(sessions[i])):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(int(i))
        sizes[smallest] += len(sessions[i])
    rank = {int(session): place for place, session in enumerate(order)}
    passes = []
    for part in parts:
        served = np.concatenate([sessions[i] for i in sorted(part, key=rank.__getitem__)])
        is_learnt = np.ones(len(sampled.outputs), np.bool_)
        is_learnt[served] = False
        passes.append(Pass(np.flatnonzero(is_learnt), served))
    return passes


def prepared(sampled: Sampled, passes: Sequence[Pass], config: EngineConfig) -> list[Pass]:
    """The passes with the index of what they learn at first, so that many engines can begin with it."""
    found = []
    for one in passes:
        engine = Engine(config)
        for place in one.learnt:
            _learn(engine, sampled, int(place))
        engine.flush()
        snapshot = engine.snapshot("")
        blobs = tuple(segment.blob for segment in snapshot.segments)
        found.append(replace(one, segments=blobs, unsealed=snapshot.unsealed.astype(np.int64) - 1))
    return found


def num_orders(sampled: Sampled) -> int:
    """The number of random orders in which sessions are served cold: the fewer the outputs, the more their order
    matters."""
    num_outputs = len(sampled.outputs)
    return 4 if num_outputs <= 100 else 2 if num_outputs <= 400 else 1


def is_crowd(sampled: Sampled, clients: int) -> bool:
    """Whether the outputs that so many clients are waiting for are a share of the log that matters for what a cold
    server has learnt."""
    return clients > max(1.0, _CROWD * len(sampled.outputs))


def followed(engine: Engine, sampled: Sampled, one: Pass, clients: int = 1) -> Iterator[int]:
    """Lets the engine learn what a pass lets a server learn, and yields the index of each measured call when the caller
    has to serve it. Calls without a step are only learnt.

    Args:
        engine: A new engine.
        clients: The number of calls that are answered at the same time. An output is learnt when the calls that began
            before its end have begun. With one client the caller lets the engine keep the output if it is whole;
            otherwise the caller must not.
    """
    measured = {int(place): i for i, place in enumerate(sampled.places) if len(sampled.measured[i].output) > 1}
    if one.segments:
        engine.load_segments("", one.segments)
    for place in one.learnt if one.unsealed is None else one.unsealed:
        _learn(engine, sampled, int(place))
    unfinished: deque[int] = deque()
    for place in one.served.tolist():
        if place in measured:
            yield measured[place]
        if clients > 1 or place not in measured or not sampled.is_whole(measured[place]):
            unfinished.append(place)
        if len(unfinished) >= clients:
            _learn(engine, sampled, unfinished.popleft())


def _learn(engine: Engine, sampled: Sampled, place: int) -> None:
    """Adds a finished output as a store does, with only the end of its prompt."""
    call = sampled.outputs[place]
    tail = call.prompt
    engine.add("", place + 1, np.concatenate([tail, call.output]), num_prompt_tail=len(tail), time=place + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """n served calls."""

    calls: NDArray[np.int64]
    """[n], indexes into the measured calls."""
    tokens: NDArray[np.float64]
    """[n], the tokens that decoding steps produce, which are all but the first."""
    steps: NDArray[np.float64]
    """[n]"""

    def chosen(self, mask: NDArray[np.bool_]) -> Lengths:
        return Lengths(self.calls[mask], self.tokens[mask], self.steps[mask])

    def accept_length(self) -> float | None:
        total = self.steps.sum()
        return float(self.tokens.sum() / total) if total else None

    def ratio(self, sampled: Sampled) -> Ratio | None:
        """The accept length and its error; None where there is no step."""
        sessions = [sampled.measured[i].session for i in self.calls]
        return ratio(self.tokens, self.steps, sessions, sampled.share)


def engine_config(width: int, budget_bytes: int) -> EngineConfig:
    """The configuration of a server's engine for rows of `width` tokens, the root included."""
    served = EngineConfig.served(max(width - 1, 1))
    return replace(served, budget_bytes=budget_bytes, conversation_bytes=_CONVERSATION_BYTES)


def serve(
    sampled: Sampled,
    passes: Sequence[Pass],
    config: EngineConfig,
    on_pass: Callable[[Engine], object] = lambda engine: None,
) -> Lengths:
    """Replays the measured calls of each pass on an engine of its own, step by step."""
    rows: list[tuple[int, int, int]] = []
    for one in passes:
        engine = Engine(config)
        for i in followed(engine, sampled, one):
            call = sampled.measured[i]
            rows.append((i, len(call.output) - 1, num_steps(engine, call, keep=sampled.is_whole(i))))
        on_pass(engine)
    return _lengths(rows)


def serve_alone(sampled: Sampled, config: EngineConfig) -> Lengths:
    """Serves each session with an engine that keeps no outputs, so a call drafts from its own prompt and output only."""
    config = replace(config, budget_bytes=0, max_siblings=0)
    rows: list[tuple[int, int, int]] = []
    engine, session = Engine(config), ""
    for i in sorted(range(len(sampled.measured)), key=lambda i: sampled.measured[i].session):
        call = sampled.measured[i]
        if call.session != session:
            engine, session = Engine(config), call.session
        if len(call.output) > 1:
            rows.append((i, len(call.output) - 1, num_steps(engine, call)))
    return _lengths(rows)


def _lengths(rows: Sequence[tuple[int, int, int]]) -> Lengths:
    calls, tokens, steps = np.array(rows, np.int64).reshape(-1, 3).T
    return Lengths(calls, tokens.astype(np.float64), steps.astype(np.float64))


def num_steps(engine: Engine, call: Call, *, keep: bool = True) -> int:
    """The number of steps that an output takes."""
    return sum(1 for _ in steps_of(engine, call, keep=keep))
