"""The drafts of servers in two states, recorded at every position of the measured calls.

    cold    has learnt nothing at first, and learns each output when it is finished
    warm    has learnt the outputs of other sessions before, and goes on learning

Drafts at positions that a replay skips cost only time. But estimates then learn only from the first token after each
position, and from no call that is only learnt. Recordings therefore begin with the estimates that a replay of the calls
ends with. Accept lengths then differ by about 1 % from those of a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.measures.grid import walk
from agentspec.analysis.measures.replays import ID, Lengths, Pass, Sampled, cold_passes, engine_config, followed, serve
from agentspec.analysis.replay.traces import Call
from agentspec.config import EngineConfig
from agentspec.drafts import DraftBuffers
from agentspec.engine import Engine
from agentspec.estimates import Estimates
from agentspec.simulation.acceptance import Acceptance

MAX_WIDTH = 32
"""Tokens per row, the root included."""
_MIN_PROBABILITY = 0.1
"""The least probability of a draft token under the paper's rule, as in agentspec.analysis.replay."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """The drafts of n served calls, in the order in which they were served."""

    acceptance: Acceptance
    calls: NDArray[np.int64]
    """[n], indexes into the measured calls. A call that was served in several orders is there several times."""
    seen: NDArray[np.int64]
    """[n], the number of outputs learnt before."""
    sessions: tuple[str, ...]
    """[n]"""
    outputs: int
    """Cold: the number of outputs that a server serves. Warm: the mean number of outputs that it learnt before."""
    share: float = 1.0
    """The share of the log's outputs that was recorded."""

    def lengths(self, width: int) -> Lengths:
        """The served calls where every draft is verified at this width."""
        tokens = np.diff(self.acceptance.starts).astype(np.float64)
        steps = walk(self.acceptance, width, 0.0).call_steps.astype(np.float64)
        return Lengths(self.calls, self.seen, tokens, steps)


def record(
    name: str,
    sampled: Sampled,
    passes: Sequence[Pass],
    alpha: float | None,
    budget_bytes: int,
    *,
    estimates: Estimates | None = None,
    clients: int = 1,
    on_call: Callable[[], object] = lambda: None,
    on_pass: Callable[[Engine], object] = lambda engine: None,
) -> Recorded | None:
    """The drafts of the servers of some passes; None where no output has two tokens, or there is no pass.

    Args:
        alpha: The alpha of the paper's rule; None for the calibrated rule.
        estimates: The estimates to begin with, see adapted_estimates(); None: the defaults.
        clients: The number of calls that are answered at the same time; unfinished ones have not been learnt.
        on_call: Called after each call.
        on_pass: Called with the engine of each pass.
    """
    config = replace(recorded_config(alpha, budget_bytes), estimates=estimates)
    num_served = sum(len(one.served) for one in passes) // max(len(sampled.outputs), 1)
    num_places = num_served * sum(len(call.output) - 1 for call in sampled.measured)
    if not num_places:
        return None
    num_learnt = sum(len(one.learnt) for one in passes) / len(passes)
    drafts = Drafts(num_places)
    calls: list[int] = []
    learnt: list[int] = []
    for one in passes:
        engine = Engine(config)
        for i, seen in followed(engine, sampled, one, clients):
            drafts.record(engine, sampled.measured[i], keep=clients == 1 and sampled.is_whole(i))
            calls.append(i)
            learnt.append(seen)
            on_call()
        on_pass(engine)
    index = np.array(calls, np.int64)
    chosen = [sampled.measured[i] for i in calls]
    acceptance = Acceptance(
        name=name,
        prompt_tokens=np.array([sum(map(len, call.prompt_parts)) for call in chosen], np.int32),
        cached_tokens=sampled.cached[index],
        starts=np.concatenate([[0], np.cumsum([len(call.output) - 1 for call in chosen])]).astype(np.int64),
        num_nodes=drafts.num_nodes,
        estimates=drafts.estimates,
        parents=drafts.parents,
        accepted=drafts.accepted,
    )
    sessions = tuple(call.session for call in chosen)
    outputs = round(num_learnt) or len(sampled.outputs)
    return Recorded(acceptance, index, np.array(learnt, np.int64), sessions, outputs, sampled.share)


def adapted_estimates(sampled: Sampled, seed: int, budget_bytes: int) -> Estimates | None:
    """The estimates of a server that began with nothing and has served the measured calls step by step."""
    found: list[Estimates] = []
    one = cold_passes(sampled, 1, seed)
    serve(sampled, one, engine_config(MAX_WIDTH, budget_bytes), lambda engine: found.append(engine.estimates()))
    return found[0] if found else None


class Drafts:
    """The drafts of calls that are recorded one after another; see Acceptance for the arrays."""

    def __init__(self, num_places: int) -> None:
        self.num_nodes = np.ones(num_places, np.uint8)
        self.estimates = np.zeros((num_places, MAX_WIDTH), np.float32)
        self.parents = np.full((num_places, MAX_WIDTH), -1, np.int8)
        self.accepted = np.zeros((num_places, MAX_WIDTH), np.uint8)
        self._place = 0
        self._buffers = DraftBuffers(1, MAX_WIDTH - 1)
        # One accepted token, as Engine.grow() reads it.
        self._grown = np.array([[1, 0]], np.int64)

    def record(self, engine: Engine, call: Call, *, keep: bool) -> None:
        """Serves a call token by token."""
        first, count = self._place, len(call.output) - 1
        tokens = np.full((count, MAX_WIDTH), -1, np.int32)
        engine.open(ID, call.prompt)
        rows = engine.rows([ID])
        for i, token in enumerate(call.output[:-1].tolist()):
            self._grown[0, 1] = token
            engine.grow(rows, self._grown)
            engine.learn(rows)
            batch = engine.draft_rows(rows, out=self._buffers, max_tokens=MAX_WIDTH - 1)
            n = len(batch.tokens)
            self.num_nodes[first + i] = n
            tokens[i, :n] = batch.tokens
            self.parents[first + i, :n] = batch.parents
            self.estimates[first + i, :n] = batch.estimates
        engine.extend(ID, call.output[-1:])
        engine.close(ID, keep=keep)
        self._place += count
        places = slice(first, self._place)
        self.accepted[places] = _accepted(tokens, self.parents[places], call.output)


def _accepted(tokens: NDArray[np.int32], parents: NDArray[np.int8], output: NDArray[np.int32]) -> NDArray[np.uint8]:
    """The number of tokens accepted at each position of an output if the first k drafted nodes are verified, for all
    k."""
    count, width = tokens.shape
    row = np.arange(count)
    depths = np.zeros((count, width), np.int64)
    is_accepted = np.zeros((count, width), np.bool_)
    is_accepted[:, 0] = True
    for node in range(1, width):
        parent = parents[:, node]
        depths[:, node] = depths[row, parent] + 1
        # The last token of an output is never a drafted one.
        at = np.minimum(row + depths[:, node], count)
        is_true = (tokens[:, node] == output[at]) & (at < count)
        is_accepted[:, node] = is_accepted[row, parent] & is_true
    is_accepted[:, 0] = False
    found: NDArray[np.uint8] = is_accepted.cumsum(axis=1).astype(np.uint8)
    return found


def recorded_config(alpha: float | None, budget_bytes: int) -> EngineConfig:
    """The configuration of an engine whose drafts are recorded; for `alpha` see record()."""
    config = engine_config(MAX_WIDTH, budget_bytes)
    if alpha is None:
        return config
    return replace(config, rule="suffixdecoding", alpha=alpha, min_token_prob=_MIN_PROBABILITY)
