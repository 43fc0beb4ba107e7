"""Serves recorded calls on an event clock: what systems decide, at the step times of a GPU, without SGLang and without the
host's time.

    calls of a cell ─> clients ─> batch ─> a step of a system ─> accepted tokens, and seconds by StepTimes

The target writes the recorded answers, and a simulated head decides which drafts of the draft model are right. A request
runs for one step more than it needs, as with SGLang's overlap schedule. The systems are in clocked_systems.py.

Nothing is measured, so a run is the same on every machine, and two systems differ only by what they decide. It does not
tell what a slow host takes of it; servers on the emulated device do (servers.py).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agentspec.errors import ConfigError
from agentspec.evals.run.cells import Cell
from agentspec.evals.workloads.task import Conversation, FixedCall, Unit
from agentspec.integrations.emulated_device.models.simulated_head import (
    ACCEPTANCE_KEY,
    MISSES_KEY,
    Acceptance,
    answer_key,
    comes_true,
)
from agentspec.integrations.emulated_device.models.step_times import StepTimes

_PARTS = ("prefill", "read", "verify", "passes", "extend", "rest")
_LEAST_BUSY = 0.8
"""Share of the clients; the measurement ends when fewer have a call left."""


@dataclass(eq=False)
class Call:
    """A request, as a scheduler knows it."""

    rid: str
    origin_input_ids: list[int]
    answer: NDArray[np.int64]
    num_read: int
    """Tokens of the prompt that no earlier call of its session has left in the cache."""
    right: NDArray[np.bool_]
    """Where the head drafts the answer's token if all before were right."""
    estimates: NDArray[np.float64]
    """How sure the head is at each token of the answer."""
    output_ids: list[int] = field(default_factory=list)
    written: int = 1
    """Tokens of the answer that the target has written; the first one comes from the prefill."""
    is_over: bool = False
    """Whether the scheduler knows that the answer is complete."""

    @property
    def is_complete(self) -> bool:
        return self.written == len(self.answer)

    @property
    def length(self) -> int:
        """Number of tokens in the KV cache."""
        return len(self.origin_input_ids) + self.written - 1

    def latest(self, n: int) -> list[int]:
        """The last `n` tokens of the prompt and the written answer."""
        written: list[int] = self.answer[: self.written].tolist()
        return (self.origin_input_ids[-n:] + written)[-n:]

    def write(self, accepted: int) -> int:
        """Writes accepted tokens and the bonus token; returns how many."""
        tokens = min(accepted + 1, len(self.answer) - self.written)
        self.written += tokens
        return tokens


@dataclass(slots=True)
class Spent:
    """What a system has done and how long it took."""

    tokens: int = 0
    steps: int = 0
    row_steps: int = 0
    with_passes: int = 0
    paused: int = 0
    widths: Counter[int] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PARTS, 0.0))
    """By part; "read" is the draft model's reading of prompts."""

    def prefill(self, times: StepTimes, calls: Sequence[Call], *, reads: bool) -> float:
        """Adds the seconds of reading prompts. Returns those of the draft model, if it reads them."""
        new, context = sum(call.num_read for call in calls), sum(len(call.origin_input_ids) for call in calls)
        read = times.draft_extend(new, context, len(calls)) if reads else 0.0
        self.seconds["prefill"] += times.prefill(new, context, len(calls))
        self.seconds["read"] += read
        return read

    def step(self, width: int, **seconds: float) -> None:
        """Adds a step in which each row verified `width` tokens, by parts."""
        self.steps += 1
        self.widths[width] += 1
        for part, value in seconds.items():
            self.seconds[part] += value

    def record(self) -> dict[str, Any]:
        """Figures for a file. Tokens per second leave the target's prefills out, which are the same for all systems."""
        decoding = sum(seconds for part, seconds in self.seconds.items() if part != "prefill")
        steps, rows = max(self.steps, 1), max(self.row_steps, 1)
        return {
            "tokens": self.tokens,
            "steps": self.steps,
            "tokens_per_second": round(self.tokens / decoding, 2) if decoding else 0.0,
            "accept_length": round(self.tokens / rows, 4),
            "mean_rows": round(self.row_steps / steps, 2),
            "mean_width": round(sum(width * n for width, n in self.widths.items()) / steps, 2),
            "with_passes": round(self.with_passes / steps, 4),
            "paused": round(self.paused / steps, 4),
            "seconds": {part: round(seconds, 4) for part, seconds in sorted(self.seconds.items())},
        }


class System(Protocol):
    """What serves the calls."""

    learns: bool
    """Whether it does better with what it has seen before a flush."""
    spent: Spent

    def prefill(self, calls: Sequence[Call]) -> None:
        """Reads the prompts of calls and writes the first tokens of their answers."""
        ...

    def step(self, batch: list[Call]) -> None:
        """Decodes one step. Calls that were complete before it are over after it, because the scheduler learns of an end
        when it has launched one more step."""
        ...

    def flush(self) -> None:
        """Forgets finished answers, not what was learnt of times and acceptance."""
        ...


def serve(system: System, cell: Cell, head: Acceptance) -> dict[str, Any]:
    """Serves a cell twice, with a flush before the second time, whose figures it returns: those of Spent.record(). A server
    that has run for some minutes knows its step times and its draft model, and the first time is for that.

    `head`: what the draft model gets right in calls that do not say so themselves.
    """
    if system.learns:
        _serve(system, cell, head)
        system.flush()
    return _serve(system, cell, head)


def _serve(system: System, cell: Cell, head: Acceptance) -> dict[str, Any]:
    """The clients first ask the units to learn from. The measurement ends when too few of them have a call left."""
    clients = _Clients(cell, head)
    batch: list[Call] = []
    system.spent = Spent()
    while True:
        batch = [call for call in batch if not call.is_over]
        if clients.began(batch):
            system.spent = Spent()
        new = clients.calls()
        if new:
            system.prefill(new)
            batch += new
        if not batch or (clients.are_leaving and system.spent.steps):
            break
        system.step(batch)
    record = system.spent.record()
    # Their answers are cut, for the server too.
    while batch := [call for call in batch if not call.is_over]:
        system.step(batch)
    return record


class _Clients:
    """Clients that each ask the calls of a unit one after another, and then take the next unit."""

    def __init__(self, cell: Cell, head: Acceptance) -> None:
        self._cell, self._head = cell, head
        self._units = deque(_conversation(unit) for unit in (*cell.learnt, *cell.units))
        self._unlearnt = len(cell.learnt)
        self._is_learning = bool(cell.learnt)
        # For each client the calls that it has yet to ask, the latest text of its session, and its open call.
        self._left: list[deque[FixedCall]] = [deque() for _ in range(cell.concurrency)]
        self._text: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * cell.concurrency
        self._open: list[Call | None] = [None] * cell.concurrency
        self._asked = 0

    def began(self, batch: Sequence[Call]) -> bool:
        """Takes what is left of the batch. True once: when every unit to learn from was taken and a client is free, so that
        the measurement begins."""
        open_calls = set(map(id, batch))
        self._open = [call if id(call) in open_calls else None for call in self._open]
        is_free = any(call is None and not left for call, left in zip(self._open, self._left, strict=True))
        if self._is_learning and not self._unlearnt and is_free:
            self._is_learning = False
            return True
        return False

    def calls(self) -> list[Call]:
        """The next call of every client that waits for none."""
        found = []
        for client, current in enumerate(self._open):
            if current is None and (call := self._next(client)) is not None:
                self._open[client] = call
                found.append(call)
        return found

    def _next(self, client: int) -> Call | None:
        left = self._left[client]
        if not left:
            if not self._units:
                return None
            left.extend(self._units.popleft().calls)
            self._unlearnt = max(self._unlearnt - 1, 0)
            self._text[client] = np.zeros(0, np.int64)
        asked = left.popleft()
        prompt, answer = np.array(asked.body["input_ids"], np.int64), np.array(asked.answer, np.int64)
        before = self._text[client]
        n = min(len(prompt), len(before))
        differs = np.flatnonzero(prompt[:n] != before[:n])
        known = int(differs[0]) if len(differs) else n
        self._text[client] = np.concatenate([prompt, answer])
        self._asked += 1
        right, estimates = _head(asked, len(prompt), answer, self._head)
        return Call(str(self._asked), prompt.tolist(), answer, max(len(prompt) - known, 1), right, estimates)

    @property
    def are_leaving(self) -> bool:
        """Whether the measurement is over."""
        busy = sum(call is not None for call in self._open)
        return not self._is_learning and not self._units and busy < _LEAST_BUSY * len(self._open)


def _conversation(unit: Unit) -> Conversation:
    if not isinstance(unit, Conversation) or not all(call.answer for call in unit.calls):
        raise ConfigError("an event clock needs recorded answers; choose a task that replays a trace")
    return unit


def _head(
    asked: FixedCall, prompt: int, answer: NDArray[np.int64], head: Acceptance
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Where the head is right in an answer, and how sure it is of each token."""
    params = asked.body["sampling_params"]["custom_params"]
    places = np.arange(len(answer))
    if MISSES_KEY in params:
        right = np.ones(len(answer), np.bool_)
        right[params[MISSES_KEY]] = False
        return right, np.full(len(answer), params[ACCEPTANCE_KEY])
    rates = head.at(prompt + places)
    return comes_true(np.int64(answer_key(answer.tolist())), places, rates), rates
