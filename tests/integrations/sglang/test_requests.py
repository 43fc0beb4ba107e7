"""The engine's requests follow the scheduler's events."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from agentspec import Engine, EngineConfig
from agentspec.integrations.sglang.requests import KeptOutput, RequestBook
from agentspec.integrations.sglang.tenants import Tenants
from agentspec.store.namespaces import namespace_id


@dataclass
class FakeRequest:
    """The fields of SGLang's `Req` that the book reads, of the same types."""

    rid: str
    origin_input_ids: Sequence[int]
    output_ids: Sequence[int] = field(default_factory=lambda: array("q"))
    extra_key: str | None = None
    sampling_params: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(custom_params=None))
    finished_len: int | None = None
    is_finished: bool = False

    def finished(self) -> bool:
        return self.is_finished

    def generate(self, *tokens: int, finish: bool = False) -> None:
        self.output_ids = array("q", [*self.output_ids, *tokens])
        self.is_finished = finish


class Book:
    """A book over a real engine, with its errors counted."""

    def __init__(self) -> None:
        self.engine = Engine(EngineConfig(vocab_size=100))
        self.errors = 0
        self.kept: list[KeptOutput] = []
        self.book = RequestBook(self.engine, Tenants("auto", None), self._error, self.kept.append)

    def _error(self) -> None:
        self.errors += 1

    def drafts_after(self, prompt: list[int], tenant: str = "") -> list[int]:
        """What a new request of a tenant with this prompt is drafted."""
        name = f"probe-{next(_probe)}"
        self.engine.open(name, np.array(prompt, np.int32), namespace_id(tenant, None))
        tokens = self.engine.draft([name]).tokens[1:].tolist()
        self.engine.close(name, keep=False)
        return [int(token) for token in tokens]


_probe = count()


@pytest.fixture
def book() -> Book:
    return Book()


def request(rid: str = "a", prompt: Sequence[int] = (1, 2, 3)) -> FakeRequest:
    return FakeRequest(rid, array("q", prompt))


def test_the_text_grows_by_processed_and_unprocessed_tokens_each_once(book: Book) -> None:
    req = request()
    book.book.admit(req)
    assert book.book.sync(req, [10])  # step 1: token 10 is relayed only
    req.generate(10)
    assert book.book.sync(req, [11, 12])
    req.generate(11, 12)
    assert book.book.sync(req, [])  # the scheduler caught up
    assert book.engine.num_tokens("a") == 6
    req.is_finished = True
    book.book.finish("a")
    assert book.drafts_after([10]) == [11, 12]


def test_a_finished_output_is_kept_as_the_user_sees_it(book: Book) -> None:
    req = request()
    book.book.admit(req)
    req.generate(10, 11, 12, 13)
    book.book.sync(req, [14])
    req.finished_len = 2  # a stop inside the accepted draft
    req.is_finished = True
    book.book.finish("a")
    assert not book.engine.is_open("a")
    assert book.drafts_after([10]) == [11]


def test_the_last_tokens_are_kept_though_nothing_was_drafted_after_them(book: Book) -> None:
    req = request()
    book.book.admit(req)
    req.generate(10, 11, 12, finish=True)
    book.book.finish("a")
    assert book.drafts_after([10]) == [11, 12]


def test_a_retraction_that_dropped_tokens_opens_the_request_anew(book: Book) -> None:
    req = request()
    book.book.admit(req)
    req.generate(10)
    book.book.sync(req, [11])  # accepted in a step whose result is dropped
    book.book.admit(req)  # prefilled again
    assert book.engine.num_tokens("a") == 3, "its output is caught up on at the next step"
    req.generate(20)
    book.book.sync(req, [21])
    req.is_finished = True
    book.book.finish("a")
    assert book.drafts_after([10]) == [20], "the dropped token 11 is in no index"


def test_absence_from_the_batch_alone_keeps_a_request_open(book: Book) -> None:
    book.book.admit(request())
    for _ in range(5):
        book.book.reap(decoding=set())
    assert book.engine.is_open("a")


def test_a_request_that_ends_at_prefill_is_closed_and_kept(book: Book) -> None:
    req = request()
    book.book.admit(req)
    req.generate(10, finish=True)
    book.book.reap(decoding=set())
    assert not book.engine.is_open("a")
    assert book.engine.stats().outputs == 1


def test_an_aborted_request_is_closed_without_learning_once_no_batch_holds_it(book: Book) -> None:
    req = request("a-1")
    book.book.admit(req)
    req.generate(10, 11)
    book.book.abort("a-", everything=False)
    book.book.reap(decoding={"a-1"})
    assert book.engine.is_open("a-1"), "it still runs"
    book.book.reap(decoding=set())
    assert not book.engine.is_open("a-1")
    assert book.drafts_after([10]) == []


def test_an_abort_that_finishes_in_decode_is_not_learnt_from(book: Book) -> None:
    req = request()
    book.book.admit(req)
    req.generate(10, 11)
    book.book.abort("", everything=True)
    req.is_finished = True
    book.book.finish("a")
    assert book.engine.stats().outputs == 0


def test_a_reused_id_is_a_new_request(book: Book) -> None:
    first, second = request(prompt=[1, 2]), request(prompt=[3, 4, 5])
    first.generate(10, 11, finish=True)
    book.book.admit(first)
    book.book.admit(second)
    assert book.engine.num_tokens("a") == 3
    assert book.engine.stats().outputs == 1


def test_a_request_the_engine_refuses_is_barred_and_others_go_on(book: Book) -> None:
    bad, good = request("bad", [1, 1000]), request("good")
    book.book.admit(bad)
    book.book.admit(good)
    assert not book.book.sync(bad, [])
    assert book.book.sync(good, [])
    assert book.errors == 1
    bad.is_finished = True
    book.book.finish("bad")
    assert len(book.book) == 1


def test_requests_of_different_extra_keys_do_not_draft_from_each_other(book: Book) -> None:
    req = request()
    req.extra_key = "tenant-1"
    book.book.admit(req)
    req.generate(10, 11, finish=True)
    book.book.finish("a")
    assert book.drafts_after([10], "tenant-2") == []
    assert book.drafts_after([10], "tenant-1") == [11]


def test_unknown_requests_may_finish_and_abort(book: Book) -> None:
    book.book.finish("never seen")
    book.book.abort("never seen", everything=False)
    assert book.errors == 0


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


@pytest.mark.parametrize("ending", ["no_store", "aborted", "empty"])
def test_what_is_not_kept_is_not_handed_over(book: Book, ending: str) -> None:
    req = FakeRequest("r", [1, 2, 3])
    if ending == "no_store":
        req.sampling_params.custom_params = {"agentspec": {"no_store": True}}
    book.book.admit(req)
    if ending == "aborted":
        book.book.abort("r", everything=False)
    req.generate(*([] if ending == "empty" else [4, 5, 6]), finish=True)
    book.book.finish("r")
    assert book.kept == []
    assert len(book.book) == 0
    assert book.drafts_after([1, 2, 3]) == []


def test_a_request_may_ask_for_no_drafts(book: Book) -> None:
    req = FakeRequest("r", [1, 2, 3, 4, 1, 2])
    req.sampling_params.custom_params = {"agentspec": {"no_draft": True}}
    assert not book.book.sync(req, ())
    req.generate(3, 4, 5, finish=True)
    book.book.finish("r")
    # Its output is learnt from all the same.
    assert book.drafts_after([9, 3])[:2] == [4, 5]


def test_a_request_of_nobody_leaves_nothing_behind(book: Book) -> None:
    book.book = RequestBook(book.engine, Tenants("cache_salt", None), book._error, book.kept.append)
    req = FakeRequest("r", [1, 2, 3, 1, 2])
    assert book.book.sync(req, ())
    assert len(book.engine.draft(["r"]).tokens) > 1
    req.generate(3, 1, 2, finish=True)
    book.book.finish("r")
    # Not even how well its drafts did.
    assert np.array_equal(book.engine.estimates("private:r").weights, book.engine.estimates().weights)
    assert book.kept == []
    assert book.engine.stats().outputs == book.engine.stats().conversation_bytes == 0
