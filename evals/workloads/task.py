"""A task of `agentspec eval`: what is asked of every server, and its division into what a server may learn from and
what is measured."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from agentspec.errors import ConfigError
from agentspec.workflows.text_to_sql import Database, Question

SESSION_CALLS = 4


@dataclass(frozen=True, slots=True, eq=False)
class FixedCall:
    """A request that does not depend on other answers."""

    body: Mapping[str, Any]
    """For /generate. Its `input_ids` and `sampling_params` fix the number of answer tokens."""
    prompt_tokens_cut: int = 0
    """Tokens removed from the prompt's beginning so that it fits the model."""
    answer: tuple[int, ...] = ()
    """Token ids that the server is forced to answer first; () if the model answers by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """Calls that a client makes one after another."""

    session: str
    calls: tuple[FixedCall, ...]


Unit = Question | Conversation
"""What a client does before it takes the next unit: a question through the chain of agents, or a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInputs:
    """What tasks are made from."""

    model: Path
    """Folder of the served model; its tokenizer makes the token ids."""
    databases: Mapping[Database, Path] = field(default_factory=dict)
    data: Path | None = None
    """Folder with recorded traces."""
    learnt_calls: int = 32
    """Approximate number of calls to learn from before a warm pass."""
    max_prompt_tokens: int = 2048
    max_answer_tokens: int = 256
    seed: int = 0
    session_calls: int = SESSION_CALLS
    """Greatest number of calls of a recorded session that are followed."""
    draft_hits: Path | None = None
    """Folder with a draft model's hits in the traces, see evals/emulated/draft_hits.py; only calls that were recorded with
    it are asked. None: all calls, without hits."""
    own_answers: bool = False
    """Whether the served model answers recorded prompts by itself."""


class Pool(Protocol):
    """The units of a task. No prompt of `learnt` is ever among those that `draw` gives."""

    learnt: tuple[Unit, ...]

    def draw(self, num_calls: int, num_units: int) -> tuple[Unit, ...]:
        """Further units with about `num_calls` model calls, at least `num_units`; no prompt occurs twice.

        Raises:
            ConfigError: There are not enough.
        """
        ...

    def asked_before(self) -> int:
        """Number of calls of the last draw that were drawn before."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A workload: its source, and its metric besides speed."""

    name: str
    data: str
    metric: str
    source: str
    pool: Callable[[TaskInputs], Pool]
    trace: str = ""
    """File in the folder of traces whose answers are forced upon the model; "" if the model answers by itself."""

    @property
    def is_replay(self) -> bool:
        return bool(self.trace)

    def answered_freely(self) -> Task:
        """The same prompts, which the served model answers by itself; see TaskInputs.own_answers."""
        return replace(self, data=f"{self.data}; answered by the served model", trace="") if self.trace else self


_SHIPPED = Path(__file__).resolve().parents[1] / "traces"
"""Traces that are part of the project."""


def trace_path(folder: Path | None, trace: str) -> Path:
    """The file of recorded data: one of the project's, or in the folder of traces.

    Raises:
        ConfigError: No folder was given, or the file is not there.
    """
    if (_SHIPPED / trace).is_file():
        return _SHIPPED / trace
    if folder is None:
        raise ConfigError(f"the task needs --data FOLDER with {trace}")
    path = folder / trace
    if not path.is_file():
        raise ConfigError(f"--data must be a folder with {trace}, but {path} is no file")
    return path


class EndlessPool:
    """Units that are made as they are drawn, none twice.

    Args:
        units: Endless and all different.
        calls_a_unit: Model calls of a unit, on average.
        learnt_calls: Number of calls that are kept to learn from.
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
    """Recorded sessions: a share of them to learn from, the others to measure.

    The split is by task, so that no session of a learnt task is measured. If there are too few conversations for all
    draws, they are drawn again in another order, but never two of a session in one draw. Servers forget the earlier
    draws before each new one.

    Args:
        sessions: The conversations of each task, in any order; a session may have several.
        learnt_share: Share of the tasks to learn from.
        learnt_calls: Approximate upper limit of the calls to learn from.
        seed: Of the split and the order.
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
            # The queue ends in the middle of this draw.
            self._refill()
            units, rest = _take(self._queue, num_calls, num_units, self._learnt_prompts)
        if len(units) < num_units:
            raise ConfigError(
                f"{self._name} must have {num_units} sessions with prompts of their own to keep as many clients busy, "
                f"but there are {len(units)}; "
                + (
                    "ask for less --concurrency"
                    if units
                    else "use requests with their prompts, and with different ones"
                )
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
    """Takes conversations off the front of the queue until there are enough calls and units; also gives the rest of the
    queue.

    No session is taken twice. Calls whose prompt occurs twice or is barred are left out.
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
    """A digest that identifies a prompt."""
    return hashlib.blake2b(np.array(call.body["input_ids"], np.int32).tobytes(), digest_size=16).digest()
