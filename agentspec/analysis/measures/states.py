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

from agentspec.analysis.measures.replays import Lengths, Pass, Sampled, cold_passes, engine_config, followed, serve
from agentspec.engine import Engine
from agentspec.estimates import Estimates
from agentspec.simulation.acceptance import Acceptance, walk
from agentspec.simulation.recording import Drafts

MAX_WIDTH = 32
"""Tokens per row, the root included."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """The drafts of n served calls, in the order in which they were served."""

    acceptance: Acceptance
    calls: NDArray[np.int64]
    """[n], indexes into the measured calls. A call that was served in several orders is there several times."""
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
        return Lengths(self.calls, tokens, steps)


def record(
    name: str,
    sampled: Sampled,
    passes: Sequence[Pass],
    budget_bytes: int,
    *,
    estimates: Estimates | None = None,
    clients: int = 1,
    on_call: Callable[[], object] = lambda: None,
    on_pass: Callable[[Engine], object] = lambda engine: None,
) -> Recorded | None:
    """The drafts of the servers of some passes; None where no output has two tokens, or there is no pass.

    Args:
        estimates: The estimates to begin with, see adapted_estimates(); None: the defaults.
        clients: The number of calls that are answered at the same time; unfinished ones have not been learnt.
        on_call: Called after each call.
        on_pass: Called with the engine of each pass.
    """
    config = replace(engine_config(MAX_WIDTH, budget_bytes), estimates=estimates)
    num_served = sum(len(one.served) for one in passes) // max(len(sampled.outputs), 1)
    num_places = num_served * sum(len(call.output) - 1 for call in sampled.measured)
    if not num_places:
        return None
    num_learnt = sum(len(one.learnt) for one in passes) / len(passes)
    drafts = Drafts(num_places, MAX_WIDTH)
    calls: list[int] = []
    for one in passes:
        engine = Engine(config)
        for i in followed(engine, sampled, one, clients):
            drafts.record(engine, sampled.measured[i], keep=clients == 1 and sampled.is_whole(i))
            calls.append(i)
            on_call()
        on_pass(engine)
    index = np.array(calls, np.int64)
    chosen = [sampled.measured[i] for i in calls]
    acceptance = drafts.acceptance(name, chosen, sampled.cached[index])
    sessions = tuple(call.session for call in chosen)
    outputs = round(num_learnt) or len(sampled.outputs)
    return Recorded(acceptance, index, sessions, outputs, sampled.share)


def adapted_estimates(sampled: Sampled, seed: int, budget_bytes: int) -> Estimates | None:
    """The estimates of a server that began with nothing and has served the measured calls step by step."""
    found: list[Estimates] = []
    one = cold_passes(sampled, 1, seed)
    serve(sampled, one, engine_config(MAX_WIDTH, budget_bytes), lambda engine: found.append(engine.estimates()))
    return found[0] if found else None
