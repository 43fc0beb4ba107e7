"""Suffix drafts of a server's steps: rows affected by a failure get no draft, and are counted by the reason."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: run `make setup`")

from draft_states import KEY
from fake_request import FakeRequest

from agentspec import DraftBuffers, Engine, EngineConfig, Outcome
from agentspec.integrations.sglang.drafting.accepted_tokens import AcceptedTokens
from agentspec.integrations.sglang.drafting.breaker import Breaker
from agentspec.integrations.sglang.drafting.draftless import DraftlessRows
from agentspec.integrations.sglang.drafting.requests import KeptOutput, RequestBook
from agentspec.integrations.sglang.drafting.rows import DraftedStep
from agentspec.integrations.sglang.drafting.suffix_drafter import SuffixDrafter, SuffixStep
from agentspec.integrations.sglang.metrics import Counters
from agentspec.integrations.sglang.tenants import Tenants
from agentspec.integrations.sglang.widths.control import WidthControl
from agentspec.scheduling import ControlConfig
from agentspec.store.namespaces import namespace_id

NAMESPACE = namespace_id("", None)
REPEATED = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


def repeating(rid: str = "a", prompt: Sequence[int] = REPEATED * 4, **options: object) -> FakeRequest:
    request = FakeRequest(rid, prompt)
    if options:
        request.asks(**options)
    return request


@dataclass(frozen=True)
class Seen:
    """Copies of a step's drafts, whose memory is reused."""

    drafted: list[list[int]]
    """The drafted tokens of each row, without the root."""
    outcomes: list[Outcome] | str
    context: int
    width: int


class Serving:
    """A suffix drafter without a server, and the steps that a server would run. With `overlap`, results are processed a
    step late."""

    def __init__(self, *, overlap: bool = False, max_width: int = 8, length: int = 7) -> None:
        drafter = self.drafter = SuffixDrafter.__new__(SuffixDrafter)
        self.kept: list[KeptOutput] = []
        self.overlap = overlap
        self.counters = drafter.counters = Counters()
        drafter.drafts_here, drafter.max_width = True, max_width
        drafter._breaker = Breaker(2, 3)
        self.engine = drafter.engine = Engine(
            EngineConfig(vocab_size=1000, max_draft_tokens=max_width - 1, min_token_prob=0.0)
        )
        drafter._draftless, drafter._traced = DraftlessRows(), None
        drafter._book = RequestBook(
            drafter.engine,
            Tenants("auto", None),
            1 << 20,
            on_error=lambda: drafter.counters.add("draft_errors", 1),
            on_kept=self.kept.append,
        )
        drafter.accepted = AcceptedTokens(drafter.engine, lambda rows: drafter.counters.add("draft_errors", rows))
        drafter._buffers = DraftBuffers(1, max_width - 1)
        drafter._batch, drafter._astray, drafter._put_off = None, [], []
        drafter._kept_costs, drafter._next_keep, drafter._order = None, 0.0, None
        drafter.control = WidthControl(
            ControlConfig(controller="fixed", length=length),
            None,
            KEY,
            max_width=max_width,
            counters=drafter.counters,
            max_failures=2,
        )
        # Results that are launched but not processed.
        self.results: list[list[tuple[FakeRequest, list[int]]]] = []

    @property
    def reasons(self) -> dict[str, int]:
        """Number of rows without a draft so far, by reason."""
        return self.drafter._draftless.counts.snapshot()

    @property
    def errors(self) -> int:
        return int(self.counters.total("draft_errors"))

    def prefill(self, requests: Sequence[FakeRequest], first: int = 1) -> None:
        """Prefills the requests' prompts and writes the token `first` after each."""
        ends = [len(request.origin_input_ids) + len(request.output_ids) for request in requests]
        self.drafter.prefilled(requests, ends, torch.full((len(requests),), first))
        self.launched(list(requests), [[first]] * len(requests))

    def step(self, requests: list[FakeRequest], accepted: list[list[int]]) -> Seen:
        """Drafts, verifies and accepts, with a new list of requests, as each batch of a scheduler has."""
        return self.verify(self.drafter.draft(list(requests)), accepted)

    def verify(self, step: SuffixStep, accepted: list[list[int]]) -> Seen:
        width = max(len(row) for row in accepted)
        num_drafted, planned = self.drafter.control.plan(step.drafts, step.context)
        rows = range(len(step.requests))
        seen = Seen(
            [step.drafts.row(i).tokens[1:].tolist() for i in rows],
            step.outcomes if isinstance(step.outcomes, str) else [Outcome(value) for value in step.outcomes],
            step.context,
            planned.width,
        )
        result = SimpleNamespace(
            next_token_ids=torch.tensor([row + [0] * (width - len(row)) for row in accepted]).ravel(),
            accept_lens=torch.tensor([len(row) for row in accepted]),
            new_seq_lens=torch.tensor(
                [self.end(request) + len(row) for request, row in zip(step.requests, accepted, strict=True)]
            ),
        )
        self.drafter.accepted.verified(step.requests, step.rows, step.padding, result)
        DraftedStep.of(step.drafts, num_drafted).count_drafted(self.drafter.counters)
        self.drafter.launched(step, num_drafted > 0)
        self.launched(step.requests, accepted)
        return seen

    def end(self, request: FakeRequest) -> int:
        """Number of tokens in the KV cache: all but the last one."""
        unprocessed = sum(len(some) for result in self.results for row, some in result if row is request)
        return len(request.origin_input_ids) + len(request.output_ids) + unprocessed - 1

    def launched(self, requests: list[FakeRequest], accepted: list[list[int]]) -> None:
        self.results.append(list(zip(requests, accepted, strict=True)))
        while len(self.results) > self.overlap:
            for request, tokens in self.results.pop(0):
                request.output_ids.extend(tokens)


@pytest.fixture(params=[False, True], ids=["in turn", "overlap"])
def serving(request: pytest.FixtureRequest) -> Serving:
    return Serving(overlap=request.param)


def test_each_step_drafts_from_all_that_was_written(serving: Serving) -> None:
    a, b = repeating("a"), repeating("b", (11, 12, 13, 14) * 6)
    serving.prefill([a])
    serving.prefill([b], 11)
    assert serving.step([a, b], [[2, 3, 4], [12]]).drafted == [[2, 3, 4, 5, 6, 7, 8], [12, 13, 14, 11, 12, 13, 14]]
    seen = serving.step([b, a], [[13, 14], [5]])
    assert seen.drafted == [[13, 14, 11, 12, 13, 14, 11], [5, 6, 7, 8, 9, 10, 1]]
    assert (seen.context, seen.width) == (40 + 3 + 24 + 1, 8)
    assert serving.step([a], [[6]]).drafted == [[6, 7, 8, 9, 10, 1, 2]]
    assert serving.errors == 0 and not serving.reasons
    assert serving.counters.total("drafted_tokens") == 5 * 7 and serving.counters.total("steps") == 3


def test_what_a_step_says_of_its_rows(serving: Serving) -> None:
    a, b = repeating("a"), repeating("b", no_draft=True)
    serving.prefill([a, b])
    serving.step([a, b], [[2], [2, 3]])
    step = serving.drafter.draft([a, b])
    assert step.ends.tolist() == [41, 42] and step.padding is None
    assert step.rooms.tolist() == [7, 0]
    assert (step.requests, len(step.rows)) == ([a, b], 2)


# Texts that differ from the scheduler's -----------------------------------------------------------------------------


def astray(serving: Serving) -> tuple[FakeRequest, FakeRequest]:
    """Two running requests. The engine's text of the first one differs from the scheduler's."""
    a, b = repeating("a"), repeating("b")
    serving.prefill([a, b])
    serving.step([a, b], [[2], [2]])
    serving.engine.extend("a", [500, 501, 502])
    return a, b


def test_a_text_that_went_astray_is_brought_back_at_the_next_step(serving: Serving) -> None:
    a, b = astray(serving)
    serving.step([a, b], [[3], [3]])
    assert serving.errors == 0
    seen = serving.step([a, b], [[4, 5], [4, 5]])
    assert seen.drafted == [[4, 5, 6, 7, 8, 9, 10]] * 2
    assert serving.errors == 1
    for token in (6, 7, 8):
        seen = serving.step([a, b], [[token]] * 2)
        assert [row[0] for row in seen.drafted] == [token] * 2
    assert serving.errors == 1 and serving.reasons == {"failed": 1}


def test_a_text_that_went_astray_and_has_ended_is_let_go(serving: Serving) -> None:
    a, b = astray(serving)
    serving.step([a, b], [[3], [3]])
    a.is_finished = True
    serving.drafter.finish("a")
    assert serving.step([b], [[4]]).drafted[0][0] == 4
    assert serving.errors == 0 and not serving.engine.is_open("a")


# Steps without drafts -----------------------------------------------------------------------------------------------


def break_drafts(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    works = serving.engine.draft_followed

    def fail(rows: Any, *, max_tokens: int, **rest: Any) -> Any:
        if max_tokens:
            raise MemoryError("made to fail by a test")
        return works(rows, max_tokens=max_tokens, **rest)

    monkeypatch.setattr(serving.engine, "draft_followed", fail)


def test_failures_verify_roots_only_and_then_pause_drafting(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = repeating("a"), repeating("b")
    serving.prefill([a, b])
    with monkeypatch.context() as broken:
        break_drafts(serving, broken)
        for token, outcomes in ((2, "failed"), (3, "failed"), (4, "breaker")):
            seen = serving.step([a, b], [[token]] * 2)
            assert (seen.drafted, seen.outcomes, seen.width) == ([[], []], outcomes, 1)
    assert serving.errors == 2
    for token in (5, 6):
        assert serving.step([a, b], [[token]] * 2).outcomes == "breaker"
    assert serving.reasons == {"failed": 4, "breaker": 6}
    # The texts were kept up to date meanwhile.
    assert [row[:2] for row in serving.step([a, b], [[7]] * 2).drafted] == [[7, 8]] * 2
    assert serving.errors == 2


def test_a_step_that_could_not_be_built_costs_the_drafts_of_that_step_alone(serving: Serving) -> None:
    """It fails several times in a row, as if memory was short for a while."""
    a = repeating("a")
    serving.prefill([a])
    for token in (2, 4, 6):
        serving.drafter.draft([a])  # the tree arrays of this draft could not be built
        serving.verify(serving.drafter.nothing([a]), [[token]])
        seen = serving.step([a], [[token + 1]])
        assert seen.drafted[0][:1] == [token + 1]
    assert serving.errors == 0


def test_what_could_not_be_taken_is_taken_at_the_next_step(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    a = repeating("a")
    serving.prefill([a])
    for token in (2, 4, 6):
        with monkeypatch.context() as broken:
            broken.setattr(serving.engine, "follow", lambda *args: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                serving.drafter.draft([a])
        serving.verify(serving.drafter.nothing([a]), [[token]])
        assert serving.step([a], [[token + 1]]).drafted[0][:1] == [token + 1]
    assert serving.errors == 0


# Requests -----------------------------------------------------------------------------------------------------------


def test_rows_are_not_drafted_for_by_their_requests_reasons(serving: Serving) -> None:
    requests = [
        repeating("drafted"),
        repeating("disabled", no_draft=True),
        repeating("new", (500, 501)),
        repeating("bad"),
    ]
    requests[3].origin_input_ids[0] = 1000
    other = repeating("elsewhere", (600, 601))
    serving.prefill([other])
    other.is_finished = True
    serving.drafter.finish("elsewhere")
    serving.prefill(requests)
    assert serving.errors == 1, "a token outside the vocabulary is refused"
    for token in range(2, 6):
        seen = serving.step(requests, [[token], [token], [500 + 10 * token], [token]])
        assert seen.drafted[0][0] == token and seen.drafted[1:] == [[]] * 3
    assert serving.reasons["disabled_by_request"] == serving.reasons["refused"] == 4
    assert sum(serving.reasons.values()) == 3 * 4 and serving.errors == 1
    assert serving.drafter.some_may_not_draft
    assert not serving.drafter.may_draft("disabled") and serving.drafter.may_draft("drafted")


def test_an_answer_s_start_is_told_from_its_rest() -> None:
    serving = Serving()
    other, request = repeating("other", (600, 601)), repeating("a", (700, 701))
    serving.prefill([other], 602)
    serving.step([other], [[603]])
    other.is_finished = True
    serving.drafter.finish("other")
    serving.prefill([request], 702)
    for token in range(703, 715):
        serving.step([request], [[token]])
    del serving.reasons["no_outputs"]
    assert serving.reasons == {"no_outputs": 1, "no_match_at_start": 7, "no_match": 5}


def test_a_request_that_has_ended_and_runs_for_a_step_more_has_no_room(serving: Serving) -> None:
    a, b = repeating("a"), repeating("b")
    serving.prefill([a, b])
    serving.step([a, b], [[2], [2]])
    a.is_finished = True
    serving.drafter.finish("a")
    seen = serving.step([a, b], [[3], [3]])
    assert seen.drafted == [[], [3, 4, 5, 6, 7, 8, 9]]
    assert serving.reasons == {"no_room": 1} and serving.errors == 0
    assert [kept.request_id for kept in serving.kept] == ["a"]


def test_a_request_that_has_ended_is_kept_once_also_where_it_runs_on_alone() -> None:
    serving = Serving(overlap=True)
    a, b = repeating("a"), repeating("b")
    serving.prefill([a, b])
    serving.step([a, b], [[2], [2]])
    a.is_finished = True
    serving.drafter.finish("a")
    serving.step([a], [[3]])
    serving.drafter.idle()
    assert [kept.request_id for kept in serving.kept] == ["a"]


def test_a_request_that_ended_at_its_prefill_is_closed_behind_a_launch(serving: Serving) -> None:
    a, b = repeating("a"), repeating("b")
    serving.prefill([a, b])
    b.is_finished = True
    b.output_ids = array("q", [1])
    serving.step([a], [[2]])
    assert serving.engine.is_open("a") and not serving.engine.is_open("b")
    assert [kept.request_id for kept in serving.kept] == ["b"]
    a.is_finished = True
    serving.drafter.idle()
    assert not serving.engine.is_open("a")


def test_the_lengths_of_texts_are_told_anew_when_a_request_is_brought_back(serving: Serving) -> None:
    """A prefill puts the last token into the KV cache too, so the text has one more there than its steps accepted."""
    interrupted: list[int] = []
    order: Any = SimpleNamespace(interrupted=lambda: interrupted.append(1))
    serving.drafter._order = order
    request = repeating()
    serving.prefill([request])
    assert not interrupted
    # Its result is processed before the request is retracted.
    serving.launched([], [])
    serving.prefill([request])
    assert interrupted == [1] and serving.errors == 0


def test_what_was_accepted_is_learnt_from_behind_the_launch(serving: Serving) -> None:
    a = repeating("a")
    serving.prefill([a])
    serving.step([a], [[2, 3, 4]])
    before = serving.engine.estimates(NAMESPACE).weights
    step = serving.drafter.draft([a])
    np.testing.assert_array_equal(serving.engine.estimates(NAMESPACE).weights, before)
    serving.verify(step, [[5]])
    assert not np.array_equal(serving.engine.estimates(NAMESPACE).weights, before)


# Many rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "most"), [(31, 31), (32, 3)])
def test_many_rows_are_drafted_for_as_widely_as_the_latest_steps_verified(rows: int, most: int) -> None:
    serving = Serving(max_width=32, length=1)
    requests = [repeating(f"r{i}", REPEATED * 6) for i in range(rows)]
    serving.prefill(requests)
    seen = serving.step(requests, [[2]] * rows)
    assert min(len(row) for row in seen.drafted) > 16 and seen.width == 2
    seen = serving.step(requests, [[3]] * rows)
    sizes = {len(row) for row in seen.drafted}
    assert sizes == {3} if most == 3 else min(sizes) > 16
    assert seen.width == 2


def test_what_is_put_off_is_done_in_order_before_the_next_draft_or_when_nothing_runs() -> None:
    serving, request, done = Serving(), repeating("a"), list[int]()

    def fail() -> None:
        raise RuntimeError("put off and failed")

    serving.prefill([request])
    for call in (partial(done.append, 1), fail, partial(done.append, 2)):
        serving.drafter.later(call)
    assert not done
    serving.step([request], [[2]])
    assert done == [1, 2] and serving.errors == 1
    serving.drafter.later(done.append, 3)
    serving.drafter.idle()
    assert done == [1, 2, 3]
