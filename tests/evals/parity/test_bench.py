"""The parity bench and its client: it finds what differs, and does not wait for a server that hangs."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from chat_server import Reply, chat_server
from every import every

from agentspec.errors import ServerError
from agentspec.evals.parity.aborts import abort_storm
from agentspec.evals.parity.client import Answer, Choice, ParityClient
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


class StandIn:
    """A server that answers each prompt with its own bytes, and can hang, forget aborts or write something else."""

    def __init__(self, *, hangs: bool = False, keeps_open: bool = False, writes_else: bool = False) -> None:
        self.hangs, self.keeps_open, self.writes_else = hangs, keeps_open, writes_else
        self._aborted: set[str] = set()

    async def generate(self, request: Any) -> Any:
        from aiohttp import web

        body = await request.json()
        rid = body.get("rid", "")
        tokens = list(body["text"].encode())
        if self.writes_else and rid:
            tokens[0] += 1
        for _ in range(len(tokens)):
            if self._is_aborted(rid):
                break
            await asyncio.sleep(0.002)
        done = {"type": "length", "length": len(tokens)}
        if self._is_aborted(rid):
            tokens, done = tokens[:2], {"type": "abort"}
        while self.hangs and rid.endswith("7."):
            await asyncio.sleep(0.1)
        event = {"output_ids": tokens, "text": "", "meta_info": {"finish_reason": done, "completion_tokens": 1}}
        if body.get("stream"):
            return web.Response(text=f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n")
        return web.json_response(event)

    def _is_aborted(self, rid: str) -> bool:
        return any(rid.startswith(prefix) for prefix in self._aborted)

    async def abort(self, request: Any) -> Any:
        from aiohttp import web

        self._aborted.add((await request.json())["rid"])
        return web.Response()

    async def info(self, request: Any) -> Any:
        from aiohttp import web

        state = {"agentspec": {"active": True, "engine": {"open_requests": int(self.keeps_open)}}}
        return web.json_response({"internal_states": [state], "disable_overlap_schedule": False})

    @contextmanager
    def running(self) -> Iterator[RunningServer]:
        from aiohttp import web

        loop = asyncio.new_event_loop()
        app = web.Application()
        app.add_routes([web.post("/generate", self.generate), web.post("/abort_request", self.abort)])
        app.add_routes([web.get("/server_info", self.info)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        loop.run_until_complete(site.start())
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield RunningServer(f"http://127.0.0.1:{port}")
        finally:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            # Answers that never come are still waited for. Their tasks must not outlive the loop.
            waiting = asyncio.all_tasks(loop)
            for task in waiting:
                task.cancel()
            if waiting:
                loop.run_until_complete(asyncio.wait(waiting))
            loop.close()


def work() -> tuple[list[Round], list[list[Answer]]]:
    asks, answers = [], []
    for number in range(40):
        text = f"prompt number {number}" * (1 + number % 3)
        asks.append(Ask("whole answer", {"text": text, "sampling_params": {"temperature": 0}}, number % 2 == 0))
        done = {"type": "length", "length": len(text)}
        answers.append(Answer(200, (Choice(tuple(text.encode()), "", done, 1),)))
    return [Round(8, 0.001, tuple(asks))], [answers]


@pytest.mark.parametrize("writes_else", [False, True])
def test_aborts_end_answers_early_and_others_that_differ_are_told(writes_else: bool) -> None:
    with StandIn(writes_else=writes_else).running() as server:
        report = abort_storm(server, *work(), 80, seed=0)
    assert (report.differences > 5, bool(report.first_difference)) == (writes_else, writes_else)
    assert report.cut_short and report.whole
    assert sum(report.ends.values()) == 80 and len(report.ends) == 5


def test_a_server_that_hangs_is_not_waited_for() -> None:
    with StandIn(hangs=True).running() as server, pytest.raises(ServerError, match="hangs"):
        abort_storm(server, *work(), 80, seed=0, seconds=1.0)


def test_a_server_with_another_schedule_is_refused() -> None:
    with StandIn().running() as server:
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
