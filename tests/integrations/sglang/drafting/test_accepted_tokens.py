"""Tokens that forwards write reach the engine's texts once and in order, however late the scheduler processes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from every import every
from fake_request import FakeRequest

torch = pytest.importorskip("torch", reason="needs torch: run `make setup`")
from numpy.typing import NDArray

from agentspec import Engine, EngineConfig
from agentspec.drafts import DraftBuffers
from agentspec.integrations.sglang.drafting.accepted_tokens import AcceptedTokens
from agentspec.integrations.sglang.drafting.requests import RequestBook
from agentspec.integrations.sglang.tenants import Tenants
from agentspec.store.namespaces import namespace_id

WIDTH = 4


@dataclass(eq=False)
class Request(FakeRequest):
    """A request and its true text."""

    origin_input_ids: Sequence[int] = (1, 2, 3, 4, 5)
    written: list[int] = field(default_factory=list)
    """All output tokens on the device. `output_ids` has those that the scheduler has processed."""
    prefilled: int = 0
    """Number of tokens in the KV cache during prefill."""

    @property
    def text(self) -> list[int]:
        return [*self.origin_input_ids, *self.written]


class Followed:
    """Texts of an engine that follow the device."""

    def __init__(self) -> None:
        config = EngineConfig(rule="suffixdecoding", alpha=1e6, min_token_prob=0.0, max_draft_tokens=400)
        self.engine = Engine(config)
        self.lost = 0
        self.errors = 0
        self.accepted = AcceptedTokens(self.engine, self._lost)
        self.book = RequestBook(self.engine, Tenants("auto", None), 1 << 20, on_error=self._error)

    def _lost(self, rows: int) -> None:
        self.lost += rows

    def _error(self) -> None:
        self.errors += 1

    def prefill(self, requests: list[Any], ends: list[int], next_tokens: list[int]) -> None:
        """Prefills prompts up to `ends`, as a worker does."""
        self.accepted.catch_up()
        for request, end in zip(requests, ends, strict=True):
            self.book.admit(request, end)
        lengths = np.array(ends, np.int64)
        rows = self.engine.rows([request.rid for request in requests])
        self.accepted.prefilled(requests, rows, lengths, None, torch.tensor(next_tokens, dtype=torch.int32))

    def verify(self, requests: list[Any], accepted: list[list[int]], lengths: list[int]) -> SimpleNamespace:
        """Verifies a step whose texts had `lengths`. Returns the result, whose memory the device may reuse."""
        result = SimpleNamespace(
            next_token_ids=torch.tensor(
                [row + [9] * (WIDTH - len(row)) for row in accepted], dtype=torch.int32
            ).ravel(),
            accept_lens=torch.tensor([len(row) for row in accepted], dtype=torch.int32),
            new_seq_lens=torch.tensor([n + len(row) - 1 for n, row in zip(lengths, accepted, strict=True)]),
        )
        rows = self.engine.rows([request.rid for request in requests])
        self.accepted.verified(requests, rows, None, result)
        return result

    def ends(self, requests: list[Any]) -> NDArray[np.int64]:
        """The number of tokens in the KV cache of each request, as the engine knows it."""
        rows, buffers = self.engine.rows([request.rid for request in requests]), DraftBuffers(len(requests) or 1, 400)
        self.engine.draft_followed(rows, out=buffers, max_tokens=0)
        return buffers.ends[: len(requests)]

    def length(self, request: Any) -> int:
        return self.engine.num_tokens(request.rid)

    def last_token(self, request: Any) -> int:
        return int(self.engine.draft([request.rid], max_tokens=0).tokens[0])

    def output(self, request: Any) -> list[int]:
        """The output that the engine keeps of a request. All tokens of its text must differ."""
        if self.engine.is_open(request.rid):
            self.engine.close(request.rid)
        self.engine.open("probe", list(request.origin_input_ids[-1:]), namespace_id("", None))
        found: list[int] = self.engine.draft(["probe"]).tokens[1:].tolist()
        self.engine.close("probe", keep=False)
        return found


@pytest.fixture
def followed() -> Followed:
    return Followed()


def test_what_is_read_back_is_what_was_accepted_then(followed: Followed) -> None:
    """The next forward may write to the same memory, as the forwards of graphs do."""
    request = Request()
    followed.prefill([request], [5], [10])
    result = followed.verify([request], [[12, 13]], [6])
    for tensor in vars(result).values():
        tensor.zero_()
    followed.accepted.wait()
    assert followed.length(request) == 5, "waiting takes nothing"
    followed.accepted.catch_up()
    assert followed.ends([request]).tolist() == [7]
    assert followed.output(request) == [10, 12, 13]


def test_a_report_travels_with_the_tokens_and_belongs_to_no_text(followed: Followed) -> None:
    request = Request("a")
    followed.prefill([request], [5], [10])
    result = SimpleNamespace(
        next_token_ids=torch.tensor([12, 13, 0]), accept_lens=torch.tensor([2]), new_seq_lens=torch.tensor([7])
    )
    read = followed.accepted.verified([request], followed.engine.rows(["a"]), None, result, torch.tensor([[88, 99]]))
    assert read.wait().tolist() == [[2, 12, 13, 0, 88, 99, 7]]
    followed.accepted.catch_up()
    assert (followed.length(request), followed.last_token(request)) == (8, 13)


def test_a_token_outside_the_vocabulary_is_told_and_costs_its_row_alone() -> None:
    followed = Followed()
    a, b = Request("a"), Request("b")
    followed.prefill([a, b], [5, 5], [10, 20])
    followed.verify([a, b], [[11, -1], [21]], [6, 6])
    followed.accepted.catch_up()
    assert (followed.lost, followed.last_token(b)) == (1, 21)


class Scheduler:
    """Takes random actions of a scheduler, with results processed at once or a step late, and checks the texts."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.lag = seed % 2
        self.followed = Followed()
        self.tokens = count(10)
        self.ids = count()
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        # Results that are not processed yet, each with its requests and the tokens that they will get.
        self.results: list[list[tuple[Request, list[int]]]] = []
        self.ended: list[Request] = []
        # Lengths of the texts as reported by the device.
        self.ends: dict[Request, int] = {}

    def some(self, most: int) -> list[int]:
        """Up to `most` new tokens, which no text has yet."""
        return [next(self.tokens) for _ in range(int(self.rng.integers(1, most + 1)))]

    def arrive(self) -> None:
        # Ids of ended requests are reused at times.
        free = [r.rid for r in self.ended if all(r.rid != o.rid for o in (*self.waiting, *self.running))]
        rid = free[-1] if free and self.rng.random() < 0.5 else f"r{next(self.ids)}"
        self.waiting.append(Request(rid, tuple(self.some(12))))

    def prefill(self) -> None:
        # Results of earlier prefills and decode steps are processed before the prefill that reads them.
        batch = self.waiting[: int(self.rng.integers(1, 4))]
        ends, next_tokens = [], []
        for request in batch:
            total = len(request.text)
            end = int(self.rng.integers(request.prefilled + 1, total + 1)) if self.rng.random() < 0.4 else total
            request.prefilled = end
            ends.append(end)
            next_tokens.append(next(self.tokens))
        self.followed.prefill(batch, ends, next_tokens)
        written = []
        for request, end, token in zip(batch, ends, next_tokens, strict=True):
            self.ends[request] = end
            if end == len(request.text):
                request.written.append(token)
                written.append((request, [token]))
                self.waiting.remove(request)
                self.running.append(request)
        self.launched(written)

    def decode(self) -> None:
        self.rng.shuffle(self.running)  # type: ignore[arg-type]
        batch = list(self.running) if self.rng.random() < 0.7 else self.running[: int(self.rng.integers(1, 9))]
        accepted = [self.some(WIDTH) for _ in batch]
        self.followed.accepted.catch_up()
        lengths = [len(request.text) for request in batch]
        self.followed.verify(batch, accepted, lengths)
        for request, some in zip(batch, accepted, strict=True):
            request.written += some
            self.ends[request] = len(request.text) - 1
        self.launched(list(zip(batch, accepted, strict=True)))

    def launched(self, result: list[tuple[Request, list[int]]]) -> None:
        self.results.append(result)
        while len(self.results) > self.lag:
            self.process(self.results.pop(0))

    def process(self, result: list[tuple[Request, list[int]]]) -> None:
        for request, tokens in result:
            if request not in self.running:
                # The request was retracted or has ended, so its later tokens are dropped.
                continue
            request.output_ids.extend(tokens)
            if self.rng.random() < 0.1:
                self.running.remove(request)
                self.ended.append(request)
                request.is_finished = True
                self.ends.pop(request, None)
                self.followed.book.finish(request.rid)
                assert self.followed.output(request) == list(request.output_ids)

    def retract(self) -> None:
        request = self.running.pop(int(self.rng.integers(len(self.running))))
        request.written = list(request.output_ids)
        request.prefilled = 0
        self.waiting.insert(0, request)
        self.ends.pop(request, None)
        # The tokens that launched steps write for it are dropped.
        self.results = [[(r, some) for r, some in result if r is not request] for result in self.results]

    def step(self) -> None:
        draw = self.rng.random()
        if draw < 0.2 or not (self.waiting or self.running):
            self.arrive()
        elif draw < 0.35 and self.running:
            self.retract()
        elif (draw < 0.6 and self.waiting) or not self.running:
            self.prefill()
        else:
            self.decode()
        if self.rng.random() < 0.7:
            self.check()

    def check(self) -> None:
        self.followed.accepted.catch_up()
        being_read = [request for request in self.waiting if request.prefilled]
        for request in self.running + being_read:
            assert self.followed.length(request) == len(request.text)
            assert self.followed.last_token(request) == request.text[-1]
        order = [self.running[i] for i in self.rng.permutation(len(self.running))]
        expected = [self.ends.get(request, -1) for request in order]
        assert self.followed.ends(order).tolist() == expected
        assert (self.followed.lost, self.followed.errors) == (0, 0)


@every("seed", range(20))
def test_texts_are_what_the_device_has_written_whatever_the_scheduler_does(seed: int) -> None:
    scheduler = Scheduler(seed)
    for _ in range(150):
        scheduler.step()
    scheduler.followed.engine.check_integrity()
    assert len(scheduler.ended) > 3
