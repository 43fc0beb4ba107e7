"""Accept lengths of the measured calls: the drafts that the engine would have made while the outputs were written.

    cold    a server that has learnt nothing serves the measured calls, in several random orders of their sessions
    warm    a server that has learnt all sampled outputs of other sessions serves them

Where the measured sessions are most of the sample, little else is left to learn. They are then split into four parts,
and each part is served by a server that has learnt the other parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.calls import Labels
from agentspec.analysis.measures.bootstrap import ratio_interval
from agentspec.analysis.replay.traces import Call
from agentspec.config import EngineConfig
from agentspec.engine import Engine

_ID = "report"
_PARTS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """What is analysed: n measured calls, and m outputs to learn, which include all of the measured calls' sessions."""

    measured: tuple[Call, ...]
    labels: tuple[Labels, ...]
    """[n]"""
    files: tuple[str, ...]
    """[n]"""
    outputs: tuple[Call, ...]
    """[m], all sampled outputs with the ends of their prompts, measured sessions included, in the order of the log."""

    def parts(self) -> list[tuple[tuple[Call, ...], NDArray[np.int64]]]:
        """(outputs learnt before, indexes of measured calls) of each part that is served warm."""
        sessions = list(dict.fromkeys(call.session for call in self.measured))
        chosen = set(sessions)
        others = tuple(call for call in self.outputs if call.session not in chosen)
        if len(others) >= len(self.measured) or len(sessions) < 2:
            return [(others, np.arange(len(self.measured)))] if others else []
        dealt = {name: i % _PARTS for i, name in enumerate(sessions)}
        result = []
        for part in range(min(_PARTS, len(sessions))):
            learnt = tuple(call for call in self.outputs if dealt.get(call.session, -1) != part)
            indexes = np.flatnonzero([dealt[call.session] == part for call in self.measured])
            result.append((learnt, indexes))
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """n served calls."""

    calls: NDArray[np.int64]
    """[n], indexes into the measured calls."""
    seen: NDArray[np.int64]
    """[n], the number of outputs learnt before."""
    tokens: NDArray[np.float64]
    """[n], the tokens that decoding steps produce, which are all but the first."""
    steps: NDArray[np.float64]
    """[n]"""

    @staticmethod
    def joined(parts: Sequence[Lengths]) -> Lengths:
        names = ("calls", "seen", "tokens", "steps")
        empty = np.zeros(0, np.int64)
        return Lengths(*(np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in names))

    def chosen(self, mask: NDArray[np.bool_]) -> Lengths:
        return Lengths(self.calls[mask], self.seen[mask], self.tokens[mask], self.steps[mask])

    def accept_length(self) -> float | None:
        total = self.steps.sum()
        return float(self.tokens.sum() / total) if total else None

    def interval(self, sampled: Sampled, seed: int) -> dict[str, float] | None:
        """The mean, low and high of the accept length; None where there is no step."""
        sessions = [sampled.measured[i].session for i in self.calls]
        return ratio_interval(self.tokens, self.steps, sessions, seed)


def engine_config(width: int, budget_bytes: int) -> EngineConfig:
    """The configuration of a server's engine for rows of `width` tokens, the root included."""
    return replace(EngineConfig.served(max(width - 1, 1)), budget_bytes=budget_bytes)


def learn(engine: Engine, outputs: Sequence[Call]) -> None:
    """Adds finished outputs as a store does, with only the ends of their prompts."""
    for number, call in enumerate(outputs, 1):
        tail = call.prompt
        engine.add("", number, np.concatenate([tail, call.output]), num_prompt_tail=len(tail), time=number)


def serve(engine: Engine, calls: Sequence[Call], indexes: NDArray[np.int64], seen: int) -> Lengths:
    """Replays calls[i] for each index. Each call is learnt when it is finished."""
    tokens, steps = np.zeros(len(indexes)), np.zeros(len(indexes))
    for place, i in enumerate(indexes):
        tokens[place] = len(calls[i].output) - 1
        steps[place] = _serve_call(engine, calls[i])
    return Lengths(indexes, seen + np.arange(len(indexes)), tokens, steps)


def serve_cold(
    sampled: Sampled, config: EngineConfig, orders: int, seed: int, on_pass: Callable[[], object] = lambda: None
) -> Lengths:
    """Serves all measured calls once for each of `orders` random orders of their sessions."""
    by_session: dict[str, list[int]] = {}
    for i, call in enumerate(sampled.measured):
        by_session.setdefault(call.session, []).append(i)
    sessions = list(by_session.values())
    passes = []
    for order in range(orders):
        chosen = np.random.default_rng([seed, order]).permutation(len(sessions))
        indexes = np.array([i for place in chosen for i in sessions[place]], np.int64)
        passes.append(serve(Engine(config), sampled.measured, indexes, 0))
        on_pass()
    return Lengths.joined(passes)


def serve_alone(sampled: Sampled, config: EngineConfig) -> Lengths:
    """Serves each measured call with a server of its own that has learnt nothing, so it drafts from its prompt only."""
    passes = [serve(Engine(config), sampled.measured, np.array([i]), 0) for i in range(len(sampled.measured))]
    return Lengths.joined(passes)


def num_orders(num_calls: int) -> int:
    """The number of random orders in which calls are served cold: the fewer the calls, the more their order matters."""
    return 10 if num_calls <= 200 else 6 if num_calls <= 500 else 3


def serve_warm(
    sampled: Sampled, config: EngineConfig, on_pass: Callable[[Engine], object] = lambda engine: None
) -> Lengths:
    """Serves the measured calls after other sessions' outputs were learnt; empty where there are none."""
    passes = []
    for learnt, indexes in sampled.parts():
        engine = Engine(config)
        learn(engine, learnt)
        passes.append(serve(engine, sampled.measured, indexes, len(learnt)))
        on_pass(engine)
    return Lengths.joined(passes)


def _serve_call(engine: Engine, call: Call) -> int:
    """The number of steps that an output takes; see agentspec.analysis.replay.teacher_forcing."""
    output = call.output
    truth = output.tolist()
    last = len(truth) - 1
    engine.open(_ID, call.prompt)
    engine.extend(_ID, output[:1])
    done, steps = 1, 0
    while done <= last:
        accepted = 0
        # The last token is always the bonus token.
        if done < last:
            batch = engine.draft([_ID])
            parents = batch.parents.tolist()
            node = 0
            for i, token in enumerate(batch.tokens.tolist()):
                if parents[i] == node and token == truth[done + accepted]:
                    node = i
                    accepted += 1
                    if done + accepted == last:
                        break
        engine.extend(_ID, output[done : done + accepted + 1])
        done += accepted + 1
        steps += 1
    engine.close(_ID)
    return steps
