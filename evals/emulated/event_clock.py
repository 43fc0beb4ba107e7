"""Serves recorded calls on an event clock: what agentspec decides, at the step times of a GPU, without SGLang and without the
host's time.

    calls of a cell ─> clients ─> batch ─> a step of a system ─> accepted tokens, and seconds by StepTimes

The decisions are the server's: the engine, the steps in stream order with their native planner, the control of widths, the
policy of the hybrid, the pauses of the draft model, and the union of both drafts. The target writes the recorded answers,
and a simulated head decides which drafts of the draft model are right. A plan is one step late, and a request runs for one
step more than it needs, as with SGLang's overlap schedule.

Nothing is measured, so a run is the same on every machine, and two systems differ only by what they decide. It does not
tell what a slow host takes of it; servers on the emulated device do (servers.py).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol, cast
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from agentspec import Engine
from agentspec._core import Rows
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
from agentspec.integrations.sglang.drafting.accepted_tokens import AcceptedTokens
from agentspec.integrations.sglang.drafting.verify_input import VerifyStaging
from agentspec.integrations.sglang.kernels.tree_union import ModelTensors
from agentspec.integrations.sglang.metrics import Counters
from agentspec.integrations.sglang.settings import Settings
from agentspec.integrations.sglang.sglang_types import BatchResult, Req
from agentspec.integrations.sglang.stream_order.steps import AheadStep, StreamOrder
from agentspec.integrations.sglang.widths.control import WidthControl
from agentspec.integrations.sglang.widths.graph_sizes import FINE_TOKENS, MOST_TOKENS
from agentspec.integrations.sglang.widths.step_rest import StepRest
from agentspec.integrations.sglang.widths.tiers import FINE_WIDTHS, tier_widths
from agentspec.integrations.sglang.workers.model_use import ModelUse
from agentspec.scheduling.costs.profile import ProfileKey
from agentspec.scheduling.hybrid import HybridPolicy, ModelCosts, num_passes, pause_rule

REST = 2.5e-4
"""Seconds of a step's small kernels."""
_MAX_WIDTH, _VOCABULARY, _MAX_POSITION = 64, 200_000, 131_071
_KEY = ProfileKey(model="recorded", device="event clock", engine="none", graphs="captured")
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


class Chains:
    """Plain decoding, or SGLang's EAGLE-3 with chains of `passes` tokens."""

    learns = False

    def __init__(self, times: StepTimes, passes: int = 0) -> None:
        self._times, self._passes = times, passes
        self.spent = Spent()

    def prefill(self, calls: Sequence[Call]) -> None:
        _prefill(self.spent, self._times, calls, reads=self._passes > 0)

    def step(self, batch: list[Call]) -> None:
        rows, width = len(batch), self._passes + 1
        passes = extend = 0.0
        context = sum(call.length for call in batch)
        if self._passes:
            passes = _passes(self._times, self._passes, rows, context)
            extend = self._times.draft_extend(rows * width, context, rows)
        verify = self._times.target(rows, rows * width, context)
        for call in batch:
            call.is_over = call.is_complete
            if not call.is_over:
                ahead = call.right[call.written : call.written + self._passes]
                self.spent.tokens += call.write(len(ahead) if ahead.all() else int(ahead.argmin()))
                self.spent.row_steps += 1
        _spend(self.spent, width, verify=verify, passes=passes, extend=extend, rest=REST)

    def flush(self) -> None:
        """Has nothing to forget."""


class Agentspec:
    """Suffix drafts alone, or the hybrid with a head whose chains have `passes` tokens."""

    learns = True

    def __init__(self, times: StepTimes, rows: int, passes: int = 0) -> None:
        self._times, self._passes = times, passes
        self.spent = Spent()
        settings = Settings()
        config = settings.engine_config(vocab_size=_VOCABULARY, max_draft_tokens=_MAX_WIDTH - 1, trees=True)
        self._engine = Engine(replace(config, background=False, num_threads=1))
        self._accepted = AcceptedTokens(self._engine)
        widths = tier_widths("auto", _MAX_WIDTH, passes)
        self._rest = _SteadyRest()
        self._control = WidthControl(
            settings.control_config(has_drafter=passes > 0),
            None,
            _KEY,
            max_width=_MAX_WIDTH,
            counters=Counters(),
            max_failures=1,
            rest=self._rest,
        )
        self._control.use_widths(widths, captured=True, widths_for=partial(_widths_for, widths, passes + 1))
        shape: dict[str, Any] = {"max_rows": rows, "max_width": _MAX_WIDTH}
        self._staging = VerifyStaging(
            **shape, max_position=_MAX_POSITION, full_mask=False, device="cpu", unites=passes > 0
        )
        self._device = _Device()
        with patch.object(torch, "get_device_module", lambda device=None: self._device):
            self._order = StreamOrder(
                self._device.queue.append, "cpu", self._engine.native, self._control, self._accepted, self._staging,
                **shape, failed=_fail,
            )  # fmt: skip
        # Copies to the host are there at once.
        self._accepted.stream = None
        self._use: ModelUse | None = None
        if passes:
            self._use = ModelUse(
                HybridPolicy(settings.hybrid_config(trees=True, max_nodes=_MAX_WIDTH - 1), ModelCosts(None)),
                self._control,
                pause_rule(settings.draft_model_pause),
                passes=passes,
                max_width=_MAX_WIDTH,
                max_position=_MAX_POSITION,
            )
        # The latest step, its accepted tokens, and the calls that it completed. The scheduler has not processed it.
        self._unprocessed: tuple[AheadStep, list[int], list[Call]] | None = None

    def prefill(self, calls: Sequence[Call]) -> None:
        use, some = self._use, cast("list[Req]", list(calls))
        read = _prefill(self.spent, self._times, calls, reads=use is not None and use.follows)
        for call in calls:
            self._engine.open(call.rid, np.array(call.origin_input_ids, np.int32))
        ends = [call.length for call in calls]
        if use is not None:
            num_read = sum(call.num_read for call in calls)
            if use.follows:
                use.policy.costs.observe_read(num_read, read)
            use.prefilled(some, ends, num_read)
        first = torch.tensor([int(call.answer[0]) for call in calls])
        self._accepted.prefilled(some, self._rows(calls), np.array(ends, np.int64), None, first)

    def _rows(self, calls: Sequence[Call]) -> Rows:
        return self._engine.rows([call.rid for call in calls])

    def step(self, batch: list[Call]) -> None:
        times, use, b = self._times, self._use, len(batch)
        context = sum(call.length for call in batch)
        step, passes = self._drafted(batch, context)
        width, follows = step.width, use is not None and use.follows
        accepted, done = self._verified(batch, step)
        verify = times.target(b, b * width, context)
        extend = times.draft_extend(b * width, context, b) if follows else 0.0
        step.planned.took(verify)
        step.planned.extend_launch = extend
        # As on a server, what the draft model reads is a part of the rest.
        self._rest.seconds = REST + extend
        if use is not None:
            costs = use.policy.costs
            costs.observe_verify(verify)
            if passes:
                costs.observe_draft(b, num_passes(b, self._passes), passes)
            if follows:
                costs.observe_extend(b * width, extend)
            self.spent.with_passes += step.unites
            self.spent.paused += not follows
        _spend(self.spent, width, verify=verify, passes=passes, extend=extend, rest=REST)
        if self._unprocessed is not None:
            self._observe(*self._unprocessed)
        self._unprocessed = step, accepted, done

    def _drafted(self, batch: list[Call], context: int) -> tuple[AheadStep, float]:
        """Launches a step, whose trees are then in the staging memory. Returns it with the seconds of the draft model's
        passes."""
        order, use, some = self._order, self._use, cast("list[Req]", batch)
        rows, b, report, seconds = self._rows(batch), len(batch), None, 0.0
        if use is None:
            bound = order.bound(some)
            order.plan(some)
            step = order.launch(some, rows, None, bound, order.width(b), may_draft=True)
        else:
            plan, fit = use.plan(order, some)
            step = use.launch(order, some, rows, None, plan, fit, may_draft=True, unites=plan.passes)
            use.width = step.width
        self._device.run()
        if step.native.error:
            _fail(step.native.error)
        if use is not None and step.unites:
            seconds = _passes(self._times, num_passes(b, self._passes), b, context)
            step.planned.drafter_seconds = use.policy.costs.draft(b)
            # The packed drafts were copied before the native part wrote them.
            self._staging.copy_packed(b, step.width)
            report = self._staging.unite(self._chains(batch), use.union_limits(step.width))
        else:
            self._staging.copy_trees(b, step.width)
        step.report = report
        return step, seconds

    def _chains(self, batch: list[Call]) -> ModelTensors:
        """The head's chains: the recorded tokens where it is right, and another one where it is not."""
        b, n = len(batch), num_passes(len(batch), self._passes)
        tokens, estimates = np.zeros((b, n), np.int64), np.zeros((b, n), np.float32)
        for row, call in enumerate(batch):
            ahead = slice(call.written, call.written + n)
            answer, right = call.answer[ahead], call.right[ahead]
            tokens[row, : len(answer)] = np.where(right, answer, answer == 0)
            estimates[row] = call.estimates[min(call.written, len(call.answer) - 1)] ** np.arange(1, n + 1)
        parents, chosen = torch.arange(-1, n - 1).repeat(b, 1), torch.arange(n).repeat(b, 1)
        return ModelTensors(parents, chosen, torch.from_numpy(tokens), torch.from_numpy(estimates), 1)

    def _verified(self, batch: list[Call], step: AheadStep) -> tuple[list[int], list[Call]]:
        """Writes what the target accepts of the trees. Returns the accepted tokens of each row and the calls that are
        complete now."""
        shape = len(batch), step.width
        lengths = torch.tensor([call.length for call in batch])
        laid = self._staging.laid_out(*shape, lengths, torch.zeros((len(batch), 1), dtype=torch.int64), total=0)
        tokens = laid.tokens.view(shape).numpy()
        children, siblings = laid.next_token.numpy(), laid.next_sibling.numpy()
        rows, done = [], []
        for row, call in enumerate(batch):
            begin, call.is_over = call.written, call.is_complete
            path = 0 if call.is_over else _followed(tokens[row], children[row], siblings[row], call.answer[begin:])
            written = [0] if call.is_over else call.answer[begin : begin + call.write(path)].tolist()
            rows.append(written)
            if not call.is_over:
                self.spent.tokens += len(written)
                self.spent.row_steps += 1
                if call.is_complete:
                    done.append(call)
        lens = [len(written) for written in rows]
        padded = [written + [0] * (step.width - len(written)) for written in rows]
        # A complete request that runs once more has one token more in the cache.
        ends = [call.length + call.is_over for call in batch]
        result = SimpleNamespace(
            next_token_ids=torch.tensor(padded).ravel(),
            accept_lens=torch.tensor(lens),
            new_seq_lens=torch.tensor(ends),
        )
        step.read = self._accepted.verified(
            cast("list[Req]", batch), step.rows, None, cast(BatchResult, result), step.report
        )
        return [n - 1 for n in lens], done

    def flush(self) -> None:
        if self._unprocessed is not None:
            self._observe(*self._unprocessed)
        self._unprocessed = None
        self._engine.clear()

    def _observe(self, step: AheadStep, accepted: list[int], done: list[Call]) -> None:
        """What the scheduler does with the result of a step."""
        use, order, control = self._use, self._order, self._control
        if use is None:
            order.observe(step, accepted)
        else:
            use.observe(order, step, accepted)
        step.planned.plan = step.plan()
        control.observe(step.planned, accepted, learns=control.learns())
        if use is not None and step.unites:
            use.learn(step, use.united(step))
        for call in cast("list[Call]", step.requests):
            call.output_ids = call.answer[: call.written].tolist()
        for call in done:
            self._engine.complete(call.rid, call.answer.astype(np.int32))
            self._engine.close(call.rid)
            if use is not None:
                use.policy.forget(call.rid)


def system_named(name: str, times: StepTimes, clients: int) -> System:
    """A new system: none, suffix, eagle3-N or hybrid-N with chains of N tokens. Raises ConfigError for another name."""
    kind, _, passes = name.partition("-")
    if name in ("none", "suffix"):
        return Chains(times) if name == "none" else Agentspec(times, clients)
    if kind not in ("eagle3", "hybrid") or not passes.isdecimal() or not int(passes):
        raise ConfigError(f"a system must be none, suffix, eagle3-N or hybrid-N, such as hybrid-5, got {name!r}")
    return Chains(times, int(passes)) if kind == "eagle3" else Agentspec(times, clients, int(passes))


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


def _widths_for(widths: Sequence[int], chain: int, rows: int) -> tuple[int, ...]:
    """The widths whose graphs a step of `rows` rows may use."""

    def has_graphs(width: int) -> bool:
        least, most = FINE_TOKENS if width in FINE_WIDTHS and width != chain else (0, MOST_TOKENS)
        return least <= rows * width <= most

    return tuple(width for width in widths if has_graphs(width))


def _followed(
    tokens: NDArray[np.int64], children: NDArray[np.int64], siblings: NDArray[np.int64], text: NDArray[np.int64]
) -> int:
    """How many tokens of the text a tree holds from its root on; the text's last token is never drafted."""
    node = length = 0
    for wanted in text[:-1].tolist():
        node = int(children[node])
        while node >= 0 and tokens[node] != wanted:
            node = int(siblings[node])
        if node < 0:
            break
        length += 1
    return length


def _prefill(spent: Spent, times: StepTimes, calls: Sequence[Call], *, reads: bool) -> float:
    """Adds the seconds of reading prompts; returns those of the draft model."""
    new, context = sum(call.num_read for call in calls), sum(len(call.origin_input_ids) for call in calls)
    read = times.draft_extend(new, context, len(calls)) if reads else 0.0
    spent.seconds["prefill"] += times.prefill(new, context, len(calls))
    spent.seconds["read"] += read
    return read


def _passes(times: StepTimes, passes: int, rows: int, context: int) -> float:
    """Seconds of a chain; draft-extend has found its first token."""
    return (passes - 1) * times.draft_pass(rows, context)


def _spend(spent: Spent, width: int, **seconds: float) -> None:
    spent.steps += 1
    spent.widths[width] += 1
    for part, value in seconds.items():
        spent.seconds[part] += value


def _fail(message: str) -> None:
    raise AssertionError(f"a step failed: {message}")


class _SteadyRest(StepRest):
    """What a step takes besides its verification, set from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = REST


class _Event:
    def __init__(self, queue: deque[Any]) -> None:
        self._queue, self._is_done = queue, True

    def record(self, stream: object) -> None:
        self._is_done = False
        self._queue.append(self)

    def query(self) -> bool:
        return self._is_done

    def run(self) -> None:
        self._is_done = True


class _Device:
    """A device module with one queue, which runs when it is told to."""

    def __init__(self) -> None:
        self.queue: deque[Any] = deque()
        self.Event: Callable[[], _Event] = partial(_Event, self.queue)
        self.stream: Callable[[object], Any] = nullcontext

    def Stream(self) -> object:
        return object()

    def run(self) -> None:
        while self.queue:
            self.queue.popleft().run()
