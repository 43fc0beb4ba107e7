"""A task of `agentspec eval`: what is asked of every server, and how it is shared out between what a server may have
learnt and what is measured."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from agentspec.errors import ConfigError
from agentspec.workflows.text_to_sql import Database, Question


@dataclass(frozen=True, slots=True, eq=False)
class FixedCall:
    """A request that is known before anything is answered."""

    body: Mapping[str, Any]
    """For /generate: `input_ids` and `sampling_params`, which fix how many tokens the answer has."""
    prompt_tokens_cut: int = 0
    """Tokens that were left out at the prompt's beginning, so that it fits the model."""
    answer: tuple[int, ...] = ()
    """Token ids that the server is to be forced to answer first; () where the model answers by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """Calls that a client makes one after another."""

    session: str
    calls: tuple[FixedCall, ...]


Unit = Question | Conversation
"""What a client does before it takes the next: a question through the chain of agents, or a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInputs:
    """What tasks are made from."""

    model: Path
    """Folder of the served model; its tokenizer makes the token ids."""
    databases: Mapping[Database, Path] = field(default_factory=dict)
    data: Path | None = None
    """Folder with recorded traces."""
    learnt_calls: int = 32
    """About so many calls are learnt from before a warm pass."""
    max_prompt_tokens: int = 2048
    max_answer_tokens: int = 256
    seed: int = 0


class Pool(Protocol):
    """The units of a task. No prompt of `learnt` is ever among those that `draw` gives."""

    learnt: tuple[Unit, ...]

    def draw(self, num_calls: int, num_units: int) -> tuple[Unit, ...]:
        """Further units of about so many model calls, at least `num_units`; no prompt twice.

        Raises:
            ConfigError: There are not so many.
        """
        ...

    def asked_before(self) -> int:
        """How many calls of the last draw were drawn before too."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A workload: where it comes from, and what it measures besides speed."""

    name: str
    data: str
    metric: str
    source: str
    pool: Callable[[TaskInputs], Pool]
    trace: str = ""
    """File in the folder of traces whose answers are forced upon the model; "" where the model answers by itself."""

    @property
    def is_replay(self) -> bool:
        return bool(self.trace)


class EndlessPool:
    """Units that are made up as they are drawn, none twice.

    Args:
        units: Without end, all different.
        calls_a_unit: On average.
        learnt_calls: So many are kept to be learnt from.
    """

    def __init__(self, units: Iterator[Unit], calls_a_unit: int, learnt_calls: int) -> None:
        self._units = units
        self._calls_a_unit = calls_a_unit
        self.learnt = self.draw(learnt_calls, 1)

    def draw(self, num_calls: int, num_units: int) -> tuple[Unit, ...]:
        return tuple(islice(self._units, max(num_units, round(num_calls / self._calls_a_unit))))

    def asked_before(self) -> int:
        return 0


class SessionPool:
    """Recorded sessions: a share of them to be learnt from, the others measured.

    The split is by task, so that no session of a task that was learnt is measured. Where conversations do not suffice for
    all draws they are drawn again in another order, but never two of a session in one draw; every draw is asked of servers
    that have forgotten the earlier ones.

    Args:
        sessions: Of each task its conversations, in any order; a session may have several.
        learnt_share: Of the tasks.
        learnt_calls: At most about so many calls are learnt from.
        seed: Of the split and of the order.
        name: Of the data, for errors.
    """

    def __init__(
        self,
        sessions: Mapping[str, Sequence[Conversation]],
        *,
        learnt_share: float,
        learnt_calls: int,
        seed: int,
        name: str,
    ) -> None:
        self._rng = random.Random(f"sessions/{seed}")
        self._name = name
        tasks = sorted(sessions)
        self._rng.shuffle(tasks)
        cut = max(1, round(len(tasks) * learnt_share))
        if cut >= len(tasks):
            raise ConfigError(f"{name} must hold at least two tasks to learn from one and measure another")
        self.learnt: tuple[Unit, ...] = ()
        self._measured = [one for task in tasks[cut:] for one in sessions[task]]
        self._met: set[bytes] = set()
        self._queue: list[Conversation] = []
        self._repeated = 0
        candidates = [one for task in tasks[:cut] for one in sessions[task]]
        self._rng.shuffle(candidates)
        self.learnt = tuple(_take(candidates, learnt_calls, 1, set())[0])
        self._learnt_prompts = {_prompt(call) for unit in candidates for call in unit.calls}

    def draw(self, num_calls: int, num_units: int) -> tuple[Unit, ...]:
        units, rest = _take(self._queue, num_calls, num_units, self._learnt_prompts)
        if len(units) < num_units or sum(len(unit.calls) for unit in units) < num_calls:
            # The order ends in the middle of a draw.
            self._refill()
            units, rest = _take(self._queue, num_calls, num_units, self._learnt_prompts)
        if len(units) < num_units:
            raise ConfigError(
                f"{self._name} must have {num_units} sessions with prompts of their own to keep as many clients busy, "
                f"but there are {len(units)}; ask for less --concurrency"
            )
        self._queue = rest
        prompts = [_prompt(call) for unit in units for call in unit.calls]
        self._repeated = sum(prompt in self._met for prompt in prompts)
        self._met.update(prompts)
        return tuple(units)

    def asked_before(self) -> int:
        return self._repeated

    def _refill(self) -> None:
        self._queue = list(self._measured)
        self._rng.shuffle(self._queue)


def _take(
    queue: Sequence[Conversation], num_calls: int, num_units: int, barred: set[bytes]
) -> tuple[list[Conversation], list[Conversation]]:
    """Conversations off the queue's front until there are enough calls and units; and the queue without them.

    No session is taken twice. Calls whose prompt occurs twice, or is barred, are left out.
    """
    met = set(barred)
    taken: dict[str, Conversation] = {}
    rest = []
    calls = 0
    for one in queue:
        if one.session in taken or (len(taken) >= num_units and calls >= num_calls):
            rest.append(one)
            continue
        fresh = []
        for call in one.calls:
            if _prompt(call) not in met:
                met.add(_prompt(call))
                fresh.append(call)
        if fresh:
            taken[one.session] = Conversation(one.session, tuple(fresh))
            calls += len(fresh)
    return list(taken.values()), rest


def _prompt(call: FixedCall) -> bytes:
    """What tells prompts apart without keeping them."""
    return hashlib.blake2b(np.array(call.body["input_ids"], np.int32).tobytes(), digest_size=16).digest()
