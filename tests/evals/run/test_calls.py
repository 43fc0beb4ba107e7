"""Cells that are asked of stand-ins for servers: the closed loop, what is refused, and what a stream reports."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from every import every

from agentspec.errors import ConfigError, ServerError
from agentspec.evals.clients.client import Reply, reply_of, streamed
from agentspec.evals.run.calls import Asking, check_replies, check_state, closed_loop, exact_answers
from agentspec.evals.run.cells import PASSES, plan_cells
from agentspec.evals.systems import SYSTEMS
from agentspec.evals.workloads.task import Conversation, EndlessPool, FixedCall
from agentspec.workflows.text_to_sql import DATABASES, create_all, draw_questions


def reply(tokens: int = 5, steps: int = 0, drafted: int = 0, error: str = "", **rest: Any) -> Reply:
    return Reply(began=0.0, first=1.0, ended=2.0, tokens=tokens, steps=steps, drafted=drafted, error=error, **rest)


class Clients:
    """A sender that notes how many calls are in flight."""

    def __init__(self, text: str = "") -> None:
        self.bodies: list[Mapping[str, Any]] = []
        self.in_flight, self.most = 0, 0
        self._text = text

    async def send(self, body: Mapping[str, Any]) -> Reply:
        self.bodies.append(body)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(0.001)
        self.in_flight -= 1
        return reply(output=tuple(body["input_ids"]), text=self._text, finish_reason="stop")


def asking(**rest: Any) -> Asking:
    return Asking(**{"databases": {}, "encode": lambda messages: [len(messages)], "is_replay": False, **rest})


def unit(number: int, calls: int = 2) -> Conversation:
    bodies = [{"input_ids": [number, i], "sampling_params": {}} for i in range(calls)]
    return Conversation(str(number), tuple(FixedCall(body) for body in bodies))


def test_clients_wait_for_their_answers_and_results_keep_the_order() -> None:
    sender = Clients()
    done = asyncio.run(closed_loop(sender, [unit(i) for i in range(7)], 3, asking()))
    assert sender.most == 3
    assert [[one.output for one in some.replies] for some in done] == [[(i, 0), (i, 1)] for i in range(7)]


def test_questions_go_through_the_chain_as_token_ids(tmp_path: Path) -> None:
    paths = create_all(DATABASES, tmp_path)
    databases = {database: paths[database.name] for database in DATABASES}
    question = next(draw_questions(databases, split="heldout", seed=3))
    sender = Clients(text=question.sql)
    done = asyncio.run(closed_loop(sender, [question], 1, asking(databases=databases)))
    # The stages are link, write and check, and the SQL that was written is the gold SQL.
    assert done[0].outcome == "correct" and len(done[0].replies) >= 3
    assert all(set(body) == {"input_ids", "sampling_params"} for body in sender.bodies)


def test_cells_come_pass_by_pass_with_work_for_every_client() -> None:
    def units() -> Iterator[Conversation]:
        number = 0
        while True:
            number += 1
            yield unit(number, calls=1)

    cells = plan_cells("task", EndlessPool(units(), 1, 5), PASSES, (1, 8), 2, 4)
    assert [cell.key for cell in cells][:4] == [
        ("task", "cold", 1, 0), ("task", "cold", 8, 0), ("task", "warm", 1, 0), ("task", "warm", 8, 0),
    ]  # fmt: skip
    assert [len(cell.units) for cell in cells] == [4, 16] * 4
    assert [bool(cell.learnt) for cell in cells] == [False, False, True, True] * 2
    for bad in ((0,), (2, 0)):
        with pytest.raises(ConfigError):
            plan_cells("task", EndlessPool(units(), 1, 5), PASSES, bad, 1, 4)


@every(
    ("system", "replies", "named"),
    [
        ("ngram", [reply()], "no verify steps"),
        ("eagle3", [reply(steps=4)], "drafted nothing"),
        ("none", [reply(steps=2)], "should decode plainly"),
        ("agentspec", [reply(error="boom")], "all 1 calls.*boom"),
        ("ngram", [reply(steps=2, drafted=3, replayed=True)], "forced answers"),
    ],
)
def test_answers_without_the_speculation_that_the_name_promises_are_refused(
    system: str, replies: list[Reply], named: str
) -> None:
    with pytest.raises(ServerError, match=named):
        check_replies(SYSTEMS[system], replies, is_replay=False)
    good = reply(steps=0 if system == "none" else 2, drafted=0 if system == "none" else 3)
    check_replies(SYSTEMS[system], [good, reply(error="one of them")], is_replay=False)


ACTIVE = {"active": True, "counters": {"drafted_tokens": 1}}


@pytest.mark.parametrize(
    ("system", "state"),
    [("agentspec", None), ("agentspec", {"active": True, "counters": {"drafted_tokens": 0}}), ("ngram", ACTIVE)],
)
def test_servers_that_say_they_do_something_else_are_refused(system: str, state: Any) -> None:
    with pytest.raises(ServerError):
        check_state(SYSTEMS[system], state)


def test_forced_answers_are_counted_where_they_came_back() -> None:
    units = [Conversation("a", tuple(FixedCall({}, answer=(1, 2)) for _ in range(2))), unit(1)]
    replies = [[reply(output=(1, 2, 9)), reply(output=(1, 3))], [reply(), reply()]]
    assert exact_answers(units, replies) == 0.5
    assert exact_answers(units[1:], replies[1:]) is None
    assert exact_answers(units, [[reply(output="text")] * 2, replies[1]]) is None


def test_a_stream_tells_what_its_last_event_says() -> None:
    meta = {
        "prompt_tokens": 7, "completion_tokens": 3, "cached_tokens": 2, "spec_verify_ct": 2,
        "spec_num_proposed_drafts": 30, "spec_num_correct_drafts": 1, "finish_reason": {"type": "length"},
    }  # fmt: skip
    found = reply_of({"text": "abc", "output_ids": [1, 2, 3], "meta_info": meta}, 1.0, 1.5, 3.0)
    assert (found.tokens, found.steps, found.drafted, found.accepted, found.output) == (3, 2, 30, 1, (1, 2, 3))
    assert found.seconds == 2.0 and not found.error
    assert "2 of 3 tokens" in reply_of({"output_ids": [1, 2], "meta_info": meta}, 0, 0, 0).error
    aborted = {**meta, "finish_reason": {"type": "abort", "message": "no room"}}
    assert "no room" in reply_of({"output_ids": [], "meta_info": aborted}, 0, 0, 0).error
    assert reply_of(None, 0, 0, 0).error
    body = {"input_ids": [1], "sampling_params": {"temperature": 0, "custom_params": {"a": 1}}}
    sent = streamed(body)
    assert sent["stream"] and sent["sampling_params"]["custom_params"] == {"a": 1} and "stream" not in body
