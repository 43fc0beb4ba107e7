"""Replays recorded calls through an engine once, and keeps its draft at every place of every output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay.engine_system import remember
from agentspec.analysis.replay.traces import Call
from agentspec.config import EngineConfig
from agentspec.drafts import DraftBuffers
from agentspec.engine import Engine
from agentspec.simulation.acceptance import Acceptance

_ID = "recording"


class Drafts:
    """The drafts of calls that are recorded one after another; see Acceptance for the arrays.

    Estimates learn online only from the first token after each place, because the next place has a new draft.
    """

    def __init__(self, num_places: int, width: int) -> None:
        """Makes room for drafts of at most `width` nodes, their roots included."""
        self._num_nodes = np.ones(num_places, np.uint8)
        self._estimates = np.zeros((num_places, width), np.float32)
        self._parents = np.full((num_places, width), -1, np.int8)
        self._accepted = np.zeros((num_places, width), np.uint8)
        self._width = width
        self._place = 0
        self._buffers = DraftBuffers(1, width - 1)
        # One accepted token, as Engine.follow() reads it.
        self._grown = np.array([[1, 0]], np.int64)

    def record(self, engine: Engine, call: Call, *, keep: bool) -> None:
        """Serves a call token by token."""
        first, count = self._place, len(call.output) - 1
        tokens = np.full((count, self._width), -1, np.int32)
        engine.open(_ID, call.prompt)
        num_prompt_tokens = engine.num_tokens(_ID)
        rows = engine.rows([_ID])
        for i, token in enumerate(call.output[:-1].tolist()):
            self._grown[0, 1] = token
            engine.follow(rows, self._grown, np.array([num_prompt_tokens + i]))
            engine.learn(rows)
            batch = engine.draft_followed(rows, out=self._buffers, max_tokens=self._width - 1)
            n = len(batch.tokens)
            self._num_nodes[first + i] = n
            tokens[i, :n] = batch.tokens
            self._parents[first + i, :n] = batch.parents
            self._estimates[first + i, :n] = batch.estimates
        engine.extend(_ID, call.output[-1:])
        engine.close(_ID, keep=keep)
        self._place += count
        places = slice(first, self._place)
        self._accepted[places] = _accepted(tokens, self._parents[places], call.output)

    def acceptance(self, name: str, calls: Sequence[Call], cached_tokens: NDArray[np.int32]) -> Acceptance:
        """What was recorded of these calls."""
        return Acceptance(
            name=name,
            prompt_tokens=np.array([sum(map(len, call.prompt_parts)) for call in calls], np.int32),
            cached_tokens=cached_tokens,
            starts=np.concatenate([[0], np.cumsum([len(call.output) - 1 for call in calls])]).astype(np.int64),
            num_nodes=self._num_nodes,
            estimates=self._estimates,
            parents=self._parents,
            accepted=self._accepted,
        )


def record_acceptance(
    name: str,
    calls: Sequence[Call],
    config: EngineConfig | None = None,
    *,
    warm: Iterable[Call] = (),
    on_call: Callable[[int], object] = lambda number: None,
) -> Acceptance:
    """Learns the calls of `warm`, then drafts after every output token of `calls`, one call after another.

    A call drafts from all calls before it, as if they had been answered. A server that answers many calls at a time has
    learnt fewer.

    Args:
        calls: Calls in the order in which they were sent.
        config: The engine's configuration. A place has at most max_draft_tokens drafted nodes. None: the defaults.
        on_call: Called with the number of finished calls.
    """
    engine = Engine(config or EngineConfig())
    for call in warm:
        remember(engine, call)
    drafts = Drafts(sum(len(call.output) - 1 for call in calls), engine.config.max_draft_tokens + 1)
    for number, call in enumerate(calls, 1):
        drafts.record(engine, call, keep=True)
        on_call(number)
    return drafts.acceptance(name, calls, cached_tokens(calls))


def cached_tokens(calls: Sequence[Call]) -> NDArray[np.int32]:
    """[n], the number of tokens that each prompt shares with the prompt and output of its session's call before it. At
    least one token of a prompt is left to compute."""
    before: dict[tuple[str, str, str], Call] = {}
    cached = np.zeros(len(calls), np.int32)
    for i, call in enumerate(calls):
        session = (call.session, call.task, call.run)
        if (earlier := before.get(session)) is not None:
            # Most of the pieces are the same arrays, because the calls of a session share them.
            pieces = 0
            for one, other in zip(call.prompt_parts, earlier.prompt_parts, strict=False):
                if one is not other:
                    break
                pieces += 1
            same = sum(map(len, call.prompt_parts[:pieces]))
            rest = np.concatenate([*call.prompt_parts[pieces:], np.zeros(0, np.int32)])
            other_rest = np.concatenate([*earlier.prompt_parts[pieces:], earlier.output])
            n = min(len(rest), len(other_rest))
            differs = np.flatnonzero(rest[:n] != other_rest[:n])
            same += int(differs[0]) if len(differs) else n
            cached[i] = min(same, sum(map(len, call.prompt_parts)) - 1)
        before[session] = call
    return cached


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
