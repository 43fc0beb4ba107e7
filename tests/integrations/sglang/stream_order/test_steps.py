"""Steps that are launched ahead: what is known of them at their launch. The device is a queue that a test runs."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="needs torch: run `make setup`")

from draft_states import KEY

from agentspec import Engine, EngineConfig, Outcome
from agentspec.errors import DeviceError
from agentspec.integrations.sglang.drafting.accepted_tokens import AcceptedTokens
from agentspec.integrations.sglang.drafting.verify_input import VerifyStaging
from agentspec.integrations.sglang.metrics import Counters
from agentspec.integrations.sglang.stream_order.host_functions import HostCall
from agentspec.integrations.sglang.stream_order.steps import AheadStep, StreamOrder
from agentspec.integrations.sglang.widths.control import WidthControl
from agentspec.scheduling import ControlConfig
from agentspec.scheduling.goodput import REASONS

ROWS, WIDTHS, VOCABULARY = 6, (1, 2, 4, 8), 20


class Event:
    def __init__(self, queue: deque[Any]) -> None:
        self._queue, self.is_done = queue, True

    def record(self, *stream: Any) -> None:
        self.is_done = False
        self._queue.append(self)

    def query(self) -> bool:
        return self.is_done


class Device:
    """A device module with one queue. Copies are done at once, calls and events when the queue comes to them."""

    def __init__(self) -> None:
        self.queue: deque[Any] = deque()

    def Event(self) -> Event:
        return Event(self.queue)

    def Stream(self) -> Any:
        return SimpleNamespace(wait_stream=lambda stream: None, synchronize=lambda: None)

    def current_stream(self) -> Any:
        return self.Stream()

    def stream(self, stream: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def advance(self) -> None:
        item = self.queue.popleft()
        if isinstance(item, Event):
            item.is_done = True
        else:
            item.run()


@dataclass(eq=False)
class Request:
    rid: str
    origin_input_ids: list[int]
    padding: int
    """Tokens of the prompt that are not in the engine's text."""
    output_ids: list[int] = field(default_factory=list)
    end: int = 0
    """The true number of tokens in the KV cache when all that was launched has run."""


class Scheduler:
    """Launches steps like SGLang with overlap: the result of a forward is processed after the next one was launched."""

    def __init__(self, rng: np.random.Generator, device: Device) -> None:
        self.rng, self.device = rng, device
        self.engine = Engine(EngineConfig(vocab_size=VOCABULARY, max_draft_tokens=WIDTHS[-1] - 1, min_token_prob=0.02))
        self.accepted = AcceptedTokens(self.engine)
        control = WidthControl(ControlConfig(), None, KEY, max_width=WIDTHS[-1], counters=Counters(), max_failures=2)
        control.use_widths(WIDTHS, captured=True)
        staging = VerifyStaging(
            max_rows=ROWS, max_width=WIDTHS[-1], max_position=10_000, full_mask=True, device="cpu"
        )  # fmt: skip
        self.failures: list[str] = []
        self.order = StreamOrder(
            self._queue, "cpu", self.engine.native, control, self.accepted, staging,
            max_rows=ROWS, max_width=WIDTHS[-1], failed=self.failures.append,
        )  # fmt: skip
        self.is_refused = False
        """Whether the driver refuses the next launch."""
        self.batch: list[Request] = []
        self.steps: list[AheadStep] = []
        self._unprocessed: list[list[tuple[Request, list[int]]]] = []
        self._opened = 0

    def change(self) -> None:
        """Ends some requests and prefills others."""
        rng = self.rng
        if rng.random() < 0.3:
            self.batch = [request for request in self.batch if rng.random() < 0.7]
        count = int(rng.integers(0, 3)) if self.batch else 1
        new = [self._opened_request() for _ in range(min(count if rng.random() < 0.3 or not self.batch else 0, ROWS))]
        new = new[: ROWS - len(self.batch)]
        if not new:
            return
        tokens = [[int(rng.integers(VOCABULARY))] for _ in new]
        ends = np.array([len(request.origin_input_ids) for request in new])
        self.accepted.prefilled(new, self._rows(new), ends, self._padding(new), torch.tensor(tokens)[:, 0])
        for request, end in zip(new, ends.tolist(), strict=True):
            request.end = end
        self._launched(new, tokens)
        self.batch = [*self.batch, *new]

    def launch(self, bound: int) -> AheadStep:
        batch = list(self.batch)
        self.order.plan(batch)
        width = self.order.width(len(batch))
        return self.order.launch(batch, self._rows(batch), self._padding(batch), bound, width, may_draft=True)

    def wait(self) -> None:
        """A step that waits for its drafts, as with a grammar. It may accept as much as any other."""
        batch = list(self.batch)
        self.order.interrupted()
        while self.device.queue:
            self.device.advance()
        self.accepted.catch_up()
        self._verified(batch, self._rows(batch), self._padding(batch), WIDTHS[-1], [[1] * WIDTHS[-1] for _ in batch])

    def step(self, bound: int) -> AheadStep:
        batch, rng = list(self.batch), self.rng
        rows, padding = self._rows(batch), self._padding(batch)
        step = self.launch(bound)
        self.steps.append(step)
        # The result of the step before is processed now, so the device has come so far.
        while len(self.steps) > 1 and not self.steps[-2].is_done:
            self.device.advance()
        while self.device.queue and rng.random() < 0.5:
            self.device.advance()
        tokens = [rng.integers(0, 3, int(rng.integers(1, step.width + 1))).tolist() for _ in batch]
        self._verified(batch, rows, padding, step.width, tokens)
        return step

    def _verified(
        self, batch: list[Request], rows: Any, padding: NDArray[np.int64] | None, width: int, tokens: list[list[int]]
    ) -> None:
        for request, some in zip(batch, tokens, strict=True):
            request.end += len(some)
        result = SimpleNamespace(
            next_token_ids=torch.tensor([row + [0] * (width - len(row)) for row in tokens]).ravel(),
            accept_lens=torch.tensor([len(row) for row in tokens]),
            new_seq_lens=torch.tensor([request.end for request in batch]),
        )
        self.accepted.verified(batch, rows, padding, result)
        self._launched(batch, tokens)

    def _queue(self, call: HostCall) -> None:
        if self.is_refused:
            self.is_refused = False
            raise DeviceError("refused by a test")
        self.device.queue.append(call)

    def _opened_request(self) -> Request:
        self._opened += 1
        padding = int(self.rng.integers(0, 3))
        prompt = self.rng.integers(0, 3, int(self.rng.integers(1, 30))).tolist()
        self.engine.open(str(self._opened), prompt)
        return Request(str(self._opened), [0] * padding + prompt, padding)

    def _rows(self, requests: list[Request]) -> Any:
        return self.engine.rows([request.rid for request in requests])

    def _padding(self, requests: list[Request]) -> NDArray[np.int64] | None:
        found = np.array([request.padding for request in requests])
        return found if found.any() else None

    def _launched(self, requests: list[Request], tokens: list[list[int]]) -> None:
        self._unprocessed.append(list(zip(requests, tokens, strict=True)))
        if len(self._unprocessed) > 1:
            for request, some in self._unprocessed.pop(0):
                request.output_ids += some


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(torch, "get_device_module", lambda of=None: device)
    # The tensors are a CPU's, which knows no streams.
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    return device


@pytest.mark.parametrize("seed", range(8))
def test_no_more_tokens_are_in_the_cache_than_the_bound_says(seed: int, device: Device) -> None:
    scheduler = Scheduler(np.random.default_rng(seed), device)
    order = scheduler.order
    for _ in range(120):
        scheduler.change()
        if not scheduler.batch:
            continue
        if scheduler.rng.random() < 0.15:
            scheduler.wait()
        ends = [request.end for request in scheduler.batch]
        bound = order.bound(list(scheduler.batch))
        assert sum(ends) <= bound <= sum(ends) + len(ends) * (3 * WIDTHS[-1] + 1)
        assert max(ends) <= order.longest <= max(ends) + 3 * WIDTHS[-1] + 1
        step = scheduler.step(bound)
        while not step.is_done and scheduler.rng.random() < 0.2:
            device.advance()
        if step.is_done:
            assert step.ends.tolist() == ends, "what the device reported"


@pytest.mark.parametrize("seed", range(8))
def test_a_plan_is_the_latest_step_s_that_the_device_has_done(seed: int, device: Device) -> None:
    scheduler = Scheduler(np.random.default_rng(seed), device)
    order, last, shown = scheduler.order, None, {}
    assert order.plan([]) is None and order.describe()["plan"] == {}
    for _ in range(60):
        scheduler.change()
        if not scheduler.batch:
            continue
        planned = order.plan(list(scheduler.batch))
        done = [step for step in scheduler.steps[-2:] if step.is_done]
        # A step of other requests that drafted nothing says nothing of these.
        if done and (done[-1].requests == scheduler.batch or REASONS[done[-1].next.reason] != "nothing-drafted"):
            last = done[-1].next
        assert planned == last
        described = order.describe()["plan"]
        if last is not None and REASONS[last.reason] != "nothing-drafted":
            shown = described
            assert shown["width"] == last.width and shown["ms"] > 0.0
        assert described == shown or shown == {}, "steps that drafted nothing do not hide the last choice"
        step = scheduler.step(order.bound(list(scheduler.batch)))
        assert step.native.error == ""
        assert step.width == (1 if planned is None else planned.width)
        assert scheduler.steps[-2:-1] == [] or scheduler.steps[-2].plan().width == scheduler.steps[-2].width
    assert {step.width for step in scheduler.steps} > {1}, "some drafts were worth it"


def test_a_step_that_the_device_has_run_but_not_copied_is_not_done(device: Device) -> None:
    scheduler = Scheduler(np.random.default_rng(1), device)
    while not scheduler.batch:
        scheduler.change()
    order = scheduler.order
    step = scheduler.launch(order.bound(list(scheduler.batch)))
    assert not step.native.is_done and not step.is_done and order.plan([]) is None
    device.advance()
    assert step.native.is_done and not step.is_done and order.plan([]) is None
    device.advance()
    assert step.is_done and order.plan(step.requests) == step.next


def test_a_step_whose_launch_is_refused_waits_and_has_its_drafts(device: Device) -> None:
    scheduler = Scheduler(np.random.default_rng(2), device)
    order = scheduler.order
    for number in range(24):
        while not scheduler.batch:
            scheduler.change()
        bound = order.bound(list(scheduler.batch))
        scheduler.is_refused = number % 4 == 3
        ends = [request.end for request in scheduler.batch]
        step = scheduler.step(bound)
        assert step.native.is_done or number % 4 < 3, "it ran on the scheduler's thread"
        while device.queue:
            device.advance()
        assert step.native.error == "" and step.ends.tolist() == ends
        assert Outcome.OTHER_TEXT not in step.outcomes.tolist(), "the texts have what was written before"
        assert len(scheduler.failures) == (number + 1) // 4
