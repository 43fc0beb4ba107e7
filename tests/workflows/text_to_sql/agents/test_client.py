"""Endpoints that are down, slow, overloaded or talk nonsense, through the real OpenAI client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from chat_server import Reply, Script, chat_server, completion_body
from openai import AsyncOpenAI

from agentspec.workflows.text_to_sql import Completion, OpenAIChat
from agentspec.workflows.text_to_sql.agents.client import Sampling

ASK: Any = [{"role": "user", "content": "hello"}]
# The client's pauses grow from half a second unless the server says otherwise.
SOON = {"retry-after-ms": "5"}


def ask(url: str, *, retries: int = 0, timeout: float = 20.0, names_groups: bool = False, **call: Any) -> Completion:
    async def one() -> Completion:
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=retries, timeout=timeout) as client:
            chat = OpenAIChat(client, "m", {"a": 1, "b": 1}, names_groups=names_groups)
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


@pytest.mark.parametrize(
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
@pytest.mark.parametrize("content_type", ["application/json", "text/html"])
def test_nonsense_is_an_error(body: bytes, content_type: str) -> None:
    completion = ask_script(lambda _: Reply(body=body, headers={"Content-Type": content_type}))
    assert completion.error and not completion.text


def test_what_may_be_missing_is_done_without() -> None:
    body = json.dumps({"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}).encode()
    completion = ask_script(lambda _: Reply(body=body))
    assert (completion.error, completion.text, completion.prompt_tokens) == ("", "", 0)
