"""Endpoints that are down, slow, overloaded or talk nonsense, through the real OpenAI client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from chat_server import Reply, Script, chat_server, completion_body
from every import every
from openai import AsyncOpenAI

from agentspec.workflows.text_to_sql import Completion, OpenAIChat
from agentspec.workflows.text_to_sql.agents.client import Sampling

ASK: Any = [{"role": "user", "content": "hello"}]
# The client's pauses grow from half a second unless the server says otherwise.
SOON = {"retry-after-ms": "5"}


def ask(
    url: str, *, retries: int = 0, timeout: float = 20.0, names_groups: bool = False, streams: bool = False, **call: Any
) -> Completion:
    async def one() -> Completion:
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=retries, timeout=timeout) as client:
            chat = OpenAIChat(client, "m", {"a": 1, "b": 1}, names_groups=names_groups, streams=streams)
            return await chat.complete(ASK, 9, **call)

    return asyncio.run(one())


def ask_script(script: Script, **options: Any) -> Completion:
    with chat_server(script) as url:
        completion = ask(url, **options)
    assert url in completion.error or not completion.error
    return completion


def test_a_call_sends_its_own_fields_over_the_common_ones() -> None:
    seen: list[dict[str, Any]] = []
    extra = {"b": 2, "custom_params": {"agentspec": {"replay": {"text": "x"}}}}
    completion = ask_script(lambda r: seen.append(r) or "yes", sampling=Sampling(0.5, 3), extra_body=extra)
    assert completion.text == "yes" and not completion.error
    assert seen == [{"model": "m", "messages": ASK, "max_tokens": 9, "temperature": 0.5, "seed": 3, "a": 1, **extra}]
    ask_script(lambda r: seen.append(r) or "yes")
    assert seen[1] == {"model": "m", "messages": ASK, "max_tokens": 9, "temperature": 0.0, "a": 1, "b": 1}


def streamed(*pieces: str, finish: str = "stop", error: str = "") -> Reply:
    """A stream of pieces of text, with 11 prompt tokens and 7 completion tokens."""
    head = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    events: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": piece}}]} for piece in pieces
    ]
    events += [{**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}]
    events += [{**head, "choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}}]
    if error:
        events.insert(1, {"error": {"message": error}})
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return Reply(body="".join([*lines, "data: [DONE]\n\n"]).encode(), headers={"Content-Type": "text/event-stream"})


def test_a_streamed_answer_is_the_same_completion() -> None:
    seen: list[dict[str, Any]] = []
    found = ask_script(lambda r: seen.append(r) or streamed("a", "b", finish="length"), streams=True)
    whole = ask_script(lambda r: "ab")
    assert seen[0]["stream"] and seen[0]["stream_options"] == {"include_usage": True}
    assert (found.text, found.prompt_tokens, found.completion_tokens, found.finish_reason) == ("ab", 11, 7, "length")
    assert (whole.text, whole.prompt_tokens, whole.completion_tokens) == ("ab", 11, 7)


@every("is_told", [False, True])
def test_a_stream_that_ends_within_the_answer_is_an_error(is_told: bool) -> None:
    """A server that dies may end the connection in order, or within what it has announced."""
    whole = streamed("a", "b")
    head = whole.body[: whole.body.index(b"finish_reason") - 100]
    length = {"Content-Length": str(len(whole.body))} if is_told else {}
    found = ask_script(lambda _: Reply(body=head, headers={**whole.headers, **length}), streams=True)
    assert found.error and not found.text


def test_an_error_within_a_stream_is_an_error() -> None:
    assert "out of memory" in ask_script(lambda r: streamed("a", error="out of memory"), streams=True).error


@pytest.mark.parametrize("names_groups", [False, True])
def test_groups_are_named_only_if_that_is_wanted(names_groups: bool) -> None:
    seen: list[dict[str, Any]] = []
    replay = {"custom_params": {"agentspec": {"replay": {"text": "x"}}}}
    for extra in (None, replay):
        ask_script(
            lambda r: seen.append(r) or "yes",
            names_groups=names_groups,
            sampling=Sampling(group="one"),
            extra_body=extra,
        )
    ask_script(lambda r: seen.append(r) or "yes", names_groups=names_groups)
    told = {"group": "one"} if names_groups else {}
    assert seen[0].get("custom_params", {}).get("agentspec", {}) == told
    assert seen[1]["custom_params"]["agentspec"] == {"replay": {"text": "x"}, **told}
    assert "custom_params" not in seen[2]


def test_overloaded_servers_are_asked_again_so_many_times() -> None:
    replies = [Reply(503, headers=SOON), Reply(429, headers=SOON), Reply(500, headers=SOON)]
    said = iter([*replies, "yes"])
    assert ask_script(lambda _: next(said), retries=3).text == "yes"
    calls: list[Any] = []
    completion = ask_script(lambda r: calls.append(r) or replies[0], retries=2)
    assert len(calls) == 3 and "InternalServerError" in completion.error and not completion.text


def test_what_a_server_refuses_is_not_asked_again() -> None:
    calls: list[Any] = []
    completion = ask_script(lambda r: calls.append(r) or 400, retries=3)
    assert len(calls) == 1 and "BadRequestError" in completion.error


def test_slow_servers_are_not_waited_for() -> None:
    completion = ask_script(lambda _: Reply(seconds=0.4), timeout=0.1)
    assert "APITimeoutError" in completion.error and completion.seconds < 0.4


def test_servers_that_are_down_are_named_without_their_password() -> None:
    # Port 9 (discard) has no listener.
    completion = ask("http://me:secret@127.0.0.1:9/v1")
    assert "APIConnectionError" in completion.error and "127.0.0.1:9/v1" in completion.error
    assert "secret" not in completion.error


CHOICE = json.loads(completion_body("x", "m"))["choices"][0]


@every(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"3",
        b"{",
        b'{"choices": []}',
        b'{"choices": null}',
        b'{"choices": [null]}',
        b'{"choices": ["x"]}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": {"content": ["x"]}}]}',
        json.dumps({"choices": [CHOICE], "usage": {"prompt_tokens": "many"}}).encode(),
        b"\xff\xfe",
    ],
)
@every("streams", [False, True])
@every("content_type", ["application/json", "text/html"])
def test_nonsense_is_an_error(body: bytes, content_type: str, streams: bool) -> None:
    completion = ask_script(lambda _: Reply(body=body, headers={"Content-Type": content_type}), streams=streams)
    assert completion.error and not completion.text
    events = Reply(body=b"data: " + body + b"\n\n", headers={"Content-Type": "text/event-stream"})
    completion = ask_script(lambda _: events, streams=True)
    assert completion.error and not completion.text


def test_what_may_be_missing_is_done_without() -> None:
    body = json.dumps({"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}).encode()
    completion = ask_script(lambda _: Reply(body=body))
    assert (completion.error, completion.text, completion.prompt_tokens) == ("", "", 0)
