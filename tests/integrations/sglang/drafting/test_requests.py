"""The engine's requests follow the scheduler's events."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from engine_texts import followed
from fake_request import FakeRequest

from agentspec import DraftBuffers, Engine, EngineConfig, Outcome
from agentspec.integrations.sglang.drafting.requests import KeptOutput, RequestBook
from agentspec.integrations.sglang.tenants import Tenants
from agentspec.store.namespaces import namespace_id


class Book:
    """A book over a real engine that counts its errors."""

    def __init__(self, namespace_from: str = "auto") -> None:
        self.engine = Engine(EngineConfig(vocab_size=100))
        self.errors = 0
        self.kept: list[KeptOutput] = []
        self.opened: list[list[int]] = []
        self.book = RequestBook(
            self.engine,
            Tenants(namespace_from, None),
            CONTEXT_LENGTH,
            self._error,
            self.kept.append,
            lambda handling, prompt: self.opened.append(prompt.tolist()),
        )

    def _error(self) -> None:
        self.errors += 1

    def accept(self, request: FakeRequest, *tokens: int) -> None:
        """Accepts tokens in a step: the device has them, and the scheduler does not have them yet."""
        rows, _ = self.book.rows([request])
        end = self.engine.num_tokens(request.rid) + len(tokens) - 1
        assert self.engine.follow(rows, np.array([[len(tokens), *tokens]], np.int64), np.array([end])) == 0

    def draft(self, *requests: FakeRequest) -> tuple[list[list[int]], list[Outcome], list[int]]:
        """Returns for each request the drafted tokens, the outcome, and the number of tokens that had room."""
        rows, _ = self.book.rows(requests)
        b = len(requests)
        out = DraftBuffers(b, 31)
        followed(self.engine, [request.rid for request in requests])
        batch = self.engine.draft_followed(rows, out=out, max_tokens=31)
        drafted = [batch.row(i).tokens[1:].tolist() for i in range(b)]
        return drafted, [Outcome(value) for value in out.outcomes[:b]], out.rooms[:b].tolist()

    def drafts_after(self, prompt: list[int]) -> list[int]:
        """Tokens drafted for a new request with this prompt."""
        name = f"probe-{next(_probe)}"
        self.engine.open(name, np.array(prompt, np.int32), namespace_id("", None))
        tokens = self.engine.draft([name]).tokens[1:].tolist()
        self.engine.close(name, keep=False)
        return [int(token) for token in tokens]


CONTEXT_LENGTH = 30
_probe = count()


@pytest.fixture
def book() -> Book:
    return Book()


def test_running_requests_of_a_group_draft_from_each_other_unless_one_may_not_be_stored(book: Book) -> None:
    asking = FakeRequest("asking", [7, 8, 3])
    asking.asks(group="votes")
    book.book.admit(asking)
    for rid, options in (("stored", {"group": "votes"}), ("unstored", {"group": "votes", "no_store": True})):
        writing = FakeRequest(rid)
        writing.asks(**options)
        book.book.admit(writing)
        book.accept(writing, *((10, 11, 12) if rid == "stored" else (20, 21, 22)))
    (drafted,), _, _ = book.draft(asking)
    assert drafted[:3] == [10, 11, 12]
    assert not {20, 21, 22} & {*drafted}
    book.book.abort("stored", everything=False)
    book.book.reap([asking])
    assert book.draft(asking)[0] == [[]]


@pytest.mark.parametrize("known", [(), (10,)], ids=["all", "some"])
def test_tokens_that_the_engine_lacks_are_caught_up_on_at_a_prefill(book: Book, known: tuple[int, ...]) -> None:
    req = FakeRequest()
    book.book.admit(req)
    if known:
        book.accept(req, *known)
    req.generate(10, 11)
    book.book.admit(req, 5)
    assert book.engine.num_tokens("a") == 5
    req.is_finished = True
    book.book.finish("a")
    assert book.drafts_after([10]) == [11]


def test_rows_are_those_of_the_requests_in_their_order(book: Book) -> None:
    a, b = FakeRequest("a", [1, 2, 3, 1, 2]), FakeRequest("b", [5, 6, 7, 5, 6])
    assert [row[0] for row in book.draft(a, b)[0]] == [3, 7]
    assert [row[0] for row in book.draft(b, a)[0]] == [7, 3]
    # This is another request with the same id.
    assert book.draft(FakeRequest("a", [8, 9, 8]), b)[0][0][0] == 9
    assert book.engine.stats().open_requests == 2


# Texts that differ from the scheduler's -----------------------------------------------------------------------------


def test_a_text_that_went_astray_is_brought_back_once(book: Book) -> None:
    req = FakeRequest("a", [1, 2, 3, 1, 2])
    book.accept(req, 50, 51, 52)
    req.generate(3, 1)
    assert book.book.reopen(req)
    assert book.engine.num_tokens("a") == 7, "what the scheduler has processed"
    assert book.draft(req)[0][0][:3] == [2, 3, 1]
    assert book.opened == [[1, 2, 3, 1, 2]] and book.errors == 0
    book.accept(req, 60)
    assert not book.book.reopen(req)
    assert book.errors == 1
    assert book.draft(req)[:2] == ([[]], [Outcome.NOT_OPEN])
    assert not book.book.reopen(req) and book.errors == 1, "one error is told once"
    req.is_finished = True
    book.book.finish("a")
    assert book.kept == [] and len(book.book) == 0


def test_a_text_that_was_brought_back_is_kept_as_any_other(book: Book) -> None:
    req = FakeRequest()
    book.accept(req, 50, 51)
    req.generate(10)
    assert book.book.reopen(req)
    book.accept(req, 11)
    req.generate(11, finish=True)
    book.book.finish("a")
    assert book.drafts_after([10]) == [11] and book.drafts_after([50]) == []
    assert len(book.kept) == 1


def test_an_aborted_request_that_was_brought_back_is_not_learnt_from(book: Book) -> None:
    req = FakeRequest()
    book.accept(req, 50)
    req.generate(10, 11)
    book.book.abort("a", everything=False)
    assert book.book.reopen(req)
    req.is_finished = True
    book.book.finish("a")
    assert book.kept == [] and book.drafts_after([10]) == []


# Maximum lengths of texts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_new_tokens", "room"), [(None, 24), (3, 1), (2, 0), (1, 0), (0, 0), (20, 18), (26, 24), (27, 24), (1000, 24)]
)
def test_nothing_is_drafted_beyond_max_tokens_and_the_context(
    book: Book, max_new_tokens: int | None, room: int
) -> None:
    """A context of 30 has room for the prompt of 5 and 26 more tokens, since the last one needs no KV cache."""
    req = FakeRequest("a", [1, 2, 1, 2, 1])
    req.sampling_params.max_new_tokens = max_new_tokens
    book.accept(req, 2)
    drafted, _, rooms = book.draft(req)
    # One token is already written, and the step writes a bonus token.
    assert rooms == [room]
    assert len(drafted[0]) <= room


def test_images_take_places_of_the_context(book: Book) -> None:
    plain, padded = FakeRequest("a", [1, 2, 3]), FakeRequest("b", [1, 2, 3, *[7] * 20])
    assert book.book.rows([plain])[1] is None
    padded.origin_input_ids_unpadded = [1, 2, 3]
    rows, padding = book.book.rows([plain, padded, plain])
    assert len(rows) == 3 and padding is not None and padding.tolist() == [0, 20, 0]
    assert book.book.padding([padded, plain]).tolist() == [20, 0]
    assert book.engine.num_tokens("b") == 3, "they are not in the text"
    # The text may have 31 tokens: 30 in the KV cache, and a last one. One of them is the step's bonus token.
    assert book.draft(plain, padded)[2] == [31 - 3 - 1, 31 - 23 - 1]
    padded.generate(finish=True)
    book.book.finish("b")
    assert book.book.rows([plain])[1] is None


def test_a_text_read_again_has_the_same_limits(book: Book) -> None:
    req = FakeRequest("a", [1, 2, 3, *[7] * 20])
    req.origin_input_ids_unpadded = [1, 2, 3]
    req.sampling_params.max_new_tokens = 6
    book.accept(req, 10, 11)
    req.generate(10)
    book.book.admit(req, 4)
    assert book.engine.num_tokens("a") == 4
    assert book.draft(req)[2] == [4]
    assert book.book.rows([req])[1] is not None
    req.is_finished = True
    book.book.finish("a")
    assert book.book.rows([FakeRequest("b")])[1] is None


# How requests end ---------------------------------------------------------------------------------------------------


def test_an_aborted_request_is_closed_without_learning_once_no_batch_holds_it(book: Book) -> None:
    req = FakeRequest("a-1")
    book.book.admit(req)
    req.generate(10, 11)
    book.book.abort("a-", everything=False)
    book.book.reap([req])
    assert book.engine.is_open("a-1"), "it still runs"
    book.book.reap(())
    assert not book.engine.is_open("a-1")
    assert book.drafts_after([10]) == []


def test_a_request_that_a_full_queue_dropped_is_closed_and_no_other(book: Book) -> None:
    some = [FakeRequest(rid) for rid in ("run-1", "run-10")]
    for req in some:
        book.book.admit(req)
    book.book.drop(FakeRequest("run-10"))
    book.book.drop(some[0])
    book.book.reap(())
    assert [book.engine.is_open(req.rid) for req in some] == [False, True]


def test_what_ended_outside_of_the_batch_is_closed_while_others_decode(book: Book) -> None:
    rids = ("run", "abort", "end", "drop", "wait")
    running, aborted, ended, dropped, waiting = map(FakeRequest, rids)
    for req in (running, aborted, ended, dropped, waiting):
        book.book.admit(req)
    book.book.abort("abort", everything=False)
    ended.is_finished = True
    # SGLang drops a request for which it has no memory, and never says that it has finished.
    dropped.to_finish = "out of memory"
    book.book.reap([running, waiting])
    assert [book.engine.is_open(rid) for rid in rids] == [True, False, False, False, True]
    book.book.abort("", everything=True)
    book.book.reap([running])
    assert len(book.book) == 1 and book.engine.is_open("run")


def test_a_request_the_engine_refuses_is_barred_and_others_go_on(book: Book) -> None:
    bad, good = FakeRequest("bad", [1, 1000]), FakeRequest("good")
    book.book.admit(bad)
    book.book.admit(good)
    assert book.draft(bad, good)[1] == [Outcome.NOT_OPEN, Outcome.NO_OUTPUTS]
    book.book.admit(bad, 2)
    assert not book.book.reopen(bad)
    assert book.errors == 1
    bad.is_finished = True
    book.book.finish("bad")
    assert len(book.book) == 1


def test_a_request_whose_output_the_engine_refuses_is_barred(book: Book) -> None:
    req = FakeRequest()
    book.book.admit(req)
    req.generate(10, 1000)
    book.book.admit(req, 5)
    assert book.errors == 1 and not book.engine.is_open("a")
    assert book.draft(req)[1] == [Outcome.NOT_OPEN]


def test_a_kept_output_is_handed_over_once_with_what_belongs_to_the_answer(book: Book) -> None:
    req = FakeRequest("r", [1, 2, 3], extra_key="tenant")
    book.book.admit(req)
    req.generate(4, 5, 6, 7, finish=True)
    req.finished_len = 3
    book.book.finish("r")
    book.book.finish("r")
    (kept,) = book.kept
    assert (kept.namespace, kept.request_id) == (namespace_id("tenant", None), "r")
    assert list(kept.prompt) == [1, 2, 3]
    assert list(kept.output[: kept.num_output_tokens]) == [4, 5, 6]
    assert book.engine.delete_output(kept.output_id)


@pytest.mark.parametrize("ending", ["no_store", "aborted", "given up", "empty"])
def test_what_is_not_kept_is_not_handed_over(book: Book, ending: str) -> None:
    req = FakeRequest("r", [1, 2, 3])
    if ending == "no_store":
        req.asks(no_store=True)
    book.book.admit(req)
    if ending == "aborted":
        book.book.abort("r", everything=False)
    req.generate(*([] if ending == "empty" else [4, 5, 6]), finish=True)
    if ending == "given up":
        # SGLang ends a turn of a session so that another turn replaces, without an order to abort.
        req.finished_reason = SimpleNamespace(to_json=lambda: {"type": "abort"})
    book.book.finish("r")
    assert book.kept == []
    assert len(book.book) == 0
    assert book.drafts_after([1, 2, 3]) == []


def test_a_request_that_sglang_refuses_is_not_opened(book: Book) -> None:
    """As one whose grammar cannot be compiled: SGLang runs it once more with the prompt [0], and its own stays beside it."""
    req = FakeRequest("r", [0], origin_input_ids_unpadded=[1, 2, 3], to_finish="invalid grammar")
    book.book.admit(req, 1)
    book.book.rows([req])
    req.generate(4, finish=True)
    book.book.reap(())
    assert (book.opened, book.kept, len(book.book)) == ([], [], 0)


def test_a_request_may_ask_for_no_drafts(book: Book) -> None:
    req = FakeRequest("r", [1, 2, 3, 4, 1, 2])
    req.asks(no_draft=True)
    assert book.draft(req, FakeRequest()) == ([[], []], [Outcome.NO_ROOM, Outcome.NO_OUTPUTS], [0, 27])
    assert book.book.num_without_drafts == 1
    assert [book.book.undrafted(rid) for rid in ("r", "a", "unknown")] == ["disabled_by_request", None, None]
    book.accept(req, 50)
    assert book.book.reopen(req) and book.book.num_without_drafts == 1
    req.generate(3, 4, 5, finish=True)
    book.book.finish("r")
    assert book.book.num_without_drafts == 0
    # Its output is learnt nevertheless.
    assert book.drafts_after([9, 3])[:2] == [4, 5]


def test_a_request_of_nobody_leaves_nothing_behind() -> None:
    book = Book("cache_salt")
    req = FakeRequest("r", [1, 2, 3, 1, 2])
    assert book.draft(req)[0][0]
    book.accept(req, 3)
    req.generate(3, 1, 2, finish=True)
    book.book.finish("r")
    # Estimates did not learn from its drafts either.
    assert np.array_equal(book.engine.estimates("private:r").weights, book.engine.estimates().weights)
    assert book.kept == []
    assert book.engine.stats().outputs == book.engine.stats().conversation_bytes == 0


def test_barred_requests_of_nobody_push_out_nothing_that_a_tenant_learned() -> None:
    book = Book("cache_salt")
    initial = book.engine.estimates().weights

    def learn(req: FakeRequest) -> None:
        assert book.draft(req)[0][0]
        book.accept(req, 3)
        req.generate(3)
        assert book.draft(req)[0][0]
        book.accept(req, 1)
        req.generate(1)

    tenant = FakeRequest("tenant", [1, 2, 3, 1, 2])
    tenant.cache_salt = "acme"  # type: ignore[attr-defined]
    learn(tenant)
    learned = book.engine.estimates(namespace_id("acme", None)).weights
    assert not np.array_equal(learned, initial)
    # More of them than the namespaces whose estimates an engine keeps.
    for number in range(1100):
        req = FakeRequest(f"r{number}", [1, 2, 3, 1, 2])
        book.book.admit(req)
        assert book.book.reopen(req)
        learn(req)
        assert not np.array_equal(book.engine.estimates(f"private:r{number}").weights, initial)
        # Its text is again not the scheduler's.
        assert not book.book.reopen(req)
        assert book.errors == number + 1 and not book.engine.is_open(req.rid)
        assert np.array_equal(book.engine.estimates(f"private:r{number}").weights, initial)
    assert np.array_equal(book.engine.estimates(namespace_id("acme", None)).weights, learned)


def told(request: object) -> bool:
    return True


def test_a_request_with_penalties_has_no_drafts(book: Book) -> None:
    req = FakeRequest("r", [1, 2, 3, 4, 1, 2])
    req.sampling_params.repetition_penalty = 1.1
    assert book.draft(req) == ([[]], [Outcome.NO_ROOM], [0])
    assert book.book.undrafted("r") == "penalties"
    assert not book.book.release(told)


def test_drafts_begin_when_an_answer_has_its_min_new_tokens(book: Book) -> None:
    req = FakeRequest("r", [1, 2, 3, 4, 1, 2])
    req.sampling_params.min_new_tokens = 2
    assert book.draft(req)[1] == [Outcome.NO_ROOM]
    for token in (3, 4):
        assert not book.book.release(told)
        book.accept(req, token)
        req.generate(token)
    assert book.book.undrafted("r") == "before_min_tokens" and book.book.num_without_drafts == 1
    # After another request's prefill, the engine is not told where this text ends.
    assert not book.book.release(lambda request: False)
    assert book.book.release(told) and not book.book.release(told)
    assert book.book.undrafted("r") is None and book.book.num_without_drafts == 0
    drafted, outcomes, _ = book.draft(req)
    assert drafted[0][:2] == [1, 2] and outcomes == [Outcome.DRAFTED]
    req.generate(finish=True)
    book.book.finish("r")
    assert book.errors == 0 and len(book.book) == 0


def test_a_retracted_request_with_min_new_tokens_has_no_drafts_any_more(book: Book) -> None:
    """SGLang forbids the end of its answer for as many steps again, whatever they accept."""
    req = FakeRequest("r", range(20))
    req.sampling_params.min_new_tokens = 2
    book.book.admit(req)
    book.accept(req, 90)
    book.accept(req, 5, 6)
    req.generate(90, 5, 6)
    assert book.book.release(lambda request: True) and book.book.undrafted("r") is None
    req.retraction_count = 1
    book.book.admit(req, length=23)
    assert book.book.undrafted("r") == "before_min_tokens"
    assert not book.book.release(lambda request: True)


def test_a_request_that_ends_before_its_min_new_tokens_is_closed(book: Book) -> None:
    req = FakeRequest("r", [1, 2, 3])
    req.sampling_params.min_new_tokens = 9
    book.draft(req)
    req.generate(4, finish=True)
    book.book.finish("r")
    assert not book.book.release(told) and book.book.num_without_drafts == 0


def predicting(rid: str, *prediction: int) -> FakeRequest:
    asking = FakeRequest(rid)
    asking.sampling_params.custom_params = {"agentspec_prediction": list(prediction)}
    return asking


def test_a_request_drafts_from_its_prediction_and_leaves_only_its_answer(book: Book) -> None:
    asking = predicting("asking", 20, 21, 22, 23)
    assert book.draft(asking)[0] == [[20, 21, 22, 23]]
    assert book.draft(FakeRequest("other"))[0] == [[]]
    book.accept(asking, 20)
    asking.generate(20)
    # It is opened anew after a retraction, with its prediction.
    assert book.book.reopen(asking)
    assert book.draft(asking)[0] == [[21, 22, 23]]
    asking.is_finished = True
    book.book.finish("asking")
    assert book.drafts_after([1, 2, 3]) == [20]
    assert [list(kept.output) for kept in book.kept] == [[20]]


def test_a_prediction_is_cut_at_the_context(book: Book) -> None:
    asking = predicting("asking", *range(10, 90))
    asking.sampling_params.max_new_tokens = 5
    drafted, _, rooms = book.draft(asking)
    assert (drafted, rooms) == ([[10, 11, 12, 13]], [4])
    asking.generate(*range(10, 10 + CONTEXT_LENGTH - 3))
    book.book.reopen(asking)
    assert book.errors == 0
