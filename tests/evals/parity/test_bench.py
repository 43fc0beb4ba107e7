"""The parity bench and its client: it finds what differs, and does not wait for a server that hangs."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import server_aborts
from chat_server import Reply, chat_server
from every import every
from server_aborts import AbortReport

from agentspec.errors import ServerError
from agentspec.evals.parity.client import Answer, Choice, ParityClient, ask
from agentspec.evals.parity.random_options import PENALTIES, draw_option_rounds
from agentspec.evals.parity.requests import Ask, Round
from agentspec.evals.parity.rows import Compared, difference, is_right, row_of, table
from agentspec.evals.parity.servers import Variant, check_variant
from agentspec.integrations.servers.server import RunningServer

CHOICE = Choice(
    tokens=(5, 6, 7),
    text="a b c",
    finish_reason={"type": "length", "length": 3},
    completion_tokens=3,
    logprobs=((-0.5, 5), (None, 6)),
)


def answer(**changes: Any) -> Answer:
    return Answer(200, (replace(CHOICE, **changes),))


def test_options_are_all_drawn_but_not_those_that_plain_sglang_answers_in_two_ways() -> None:
    rounds = list(islice(draw_option_rounds(1, with_penalties=True), 6))
    assert rounds == list(islice(draw_option_rounds(1, with_penalties=True), 6))
    drawn = [set(ask.body["sampling_params"]) for round_ in rounds for ask in round_.asks]
    assert set().union(*drawn) >= {"min_new_tokens", "ebnf", "structural_tag", "logit_bias", "stop_regex", *PENALTIES}
    for options in drawn:
        assert not ("ignore_eos" in options and options & {"json_schema", "regex", "ebnf", "structural_tag"})
        assert not ("repetition_penalty" in options and options & {"frequency_penalty", "presence_penalty"})
    (plain,) = islice(draw_option_rounds(1, with_penalties=False), 1)
    assert not any(set(ask.body["sampling_params"]) & set(PENALTIES) for ask in plain.asks)


@every(
    ("got", "problem"),
    [
        (answer(), ""),
        (answer(logprobs=((-0.5001, 5), (None, 6))), ""),
        (answer(tokens=(5, 9, 7)), "place 1"),
        (answer(tokens=(5, 6)), "place 2"),
        (answer(text="a b"), "text"),
        (answer(finish_reason={"type": "stop"}), "finish_reason"),
        (answer(completion_tokens=4), "completion_tokens"),
        (answer(logprobs=((-0.6, 5), (None, 6))), "logprob 0"),
        (answer(logprobs=((float("nan"), 5), (None, 6))), "logprob 0"),
        (answer(logprobs=((-0.5, 5), (-0.1, 6))), "logprob 1"),
        (answer(logprobs=()), "0 logprobs"),
        (Answer(400), "status 400"),
        (Answer(200, (CHOICE, CHOICE)), "2 choices"),
    ],
)
def test_differences_are_told(got: Answer, problem: str) -> None:
    found = difference(answer(), got)
    assert problem in found and bool(found) == bool(problem)


def test_what_differs_is_counted_by_kind_and_kept() -> None:
    asks = [Ask("whole answer", {"sampling_params": {"temperature": 0}})] * 3
    compared = Compared()
    compared.add(asks, [answer()] * 3, [answer(), answer(tokens=(1, 2, 3)), Answer(200, (CHOICE,), note="taken back")])
    row = row_of(compared)
    assert not is_right(row)
    assert row["kinds"]["whole answer"] == {
        "requests": 3, "streamed": 0, "answers": 3, "tokens": 9, "differences": 2,
    }  # fmt: skip
    assert [kept["problem"] for kept in row["first_differences"]][1] == "taken back"
    shown = table([{"server": "ours", "drafted": 4, "accepted": 2, "retractions": 0, **row}])
    assert "2 / 3 (9)" in shown and "| ours | 3 | 9 | 2 |" in shown


@pytest.mark.parametrize(("token", "alike"), [(0, True), (1, False)])
def test_sampled_answers_are_compared_by_their_distribution(token: int, alike: bool) -> None:
    sampled = Ask("sampled", {"sampling_params": {"temperature": 1.0}})

    def drawn(numbers: list[int]) -> Answer:
        return Answer(200, tuple(replace(CHOICE, tokens=(number, 0, 0)) for number in numbers))

    compared = Compared()
    theirs, ours = [0, 1, 2, 3] * 10, [token, 1, 2, 3] * 10
    for _ in range(4):
        compared.add([sampled], [drawn(theirs)], [drawn(ours)])
    assert compared.num_differences == 0
    assert list(compared.p_values()) == ["temperature"]
    assert is_right(row_of(compared)) is alike


def test_aborted_answers_may_end_early_and_whole_ones_must_be_the_expected_ones() -> None:
    whole, cut = answer(), {"tokens": (5, 6), "finish_reason": {"type": "abort"}}
    asked = Ask("whole answer", {})
    report = AbortReport()
    for end, got in (("answered", whole), ("hung up", Answer(0)), ("aborted", answer(**cut)), ("aborted", Answer(499))):
        report.judge(asked, end, whole, got)
    assert (report.whole, report.cut_short, report.first_difference) == (1, 2, "")
    for end, got in (("answered", answer(**cut)), ("aborted", answer(**{**cut, "tokens": (5, 9)}))):
        report = AbortReport()
        report.judge(asked, end, whole, got)
        assert "differ" in report.first_difference


def test_requests_that_stay_open_and_servers_that_hang_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_aborts, "CLOSE_SECONDS", 0.0)
    server = RunningServer("http://unused")
    monkeypatch.setattr(server, "agentspec_state", lambda: {"engine": {"open_requests": 1}})
    with pytest.raises(ServerError, match="1 requests are still open"):
        server_aborts.check_closed(server)
    with chat_server(lambda _: Reply(seconds=1.0)) as url, pytest.raises(ServerError, match="hangs"):
        ask(RunningServer(url), Round(1, 0.0, (Ask("whole answer", {}),)), 0, seconds=0.2)


def test_a_server_with_another_schedule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    server = RunningServer("http://unused")
    state = {"agentspec": {"active": True}}
    info = {"internal_states": [state], "disable_overlap_schedule": False}
    monkeypatch.setattr(server, "get", lambda path: info)
    check_variant(server, Variant(system="suffix"))
    with pytest.raises(ServerError, match="overlap schedule must be off"):
        check_variant(server, Variant(system="suffix", overlap=False))


REFUSED = {"type": "abort", "message": "too long", "status_code": 400}
ABORTED = {"type": "abort", "message": "aborted", "status_code": None}


def event(tokens: list[int], finish_reason: dict[str, Any] | None) -> dict[str, Any]:
    meta = {"finish_reason": finish_reason, "completion_tokens": len(tokens)}
    return {"text": "", "output_ids": tokens, "meta_info": meta}


def streamed_answer(*events: dict[str, Any]) -> Answer:
    async def asked(url: str) -> Answer:
        async with ParityClient(url) as client:
            return await client.ask(Ask("whole answer", {"input_ids": [1]}, is_streamed=True))

    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    with chat_server(lambda _: Reply(body=body)) as url:
        return asyncio.run(asked(url))


@pytest.mark.parametrize("junk", [0, 2])
def test_a_refusal_in_a_stream_is_no_answer(junk: int) -> None:
    assert streamed_answer(event([junk], REFUSED)) == Answer(400)


def test_the_tokens_of_an_aborted_stream_are_an_answer() -> None:
    answer = streamed_answer(event([5], None), event([5, 6], ABORTED))
    assert answer.status == 200
    assert [choice.tokens for choice in answer.choices] == [(5, 6)]
