"""The recording proxy: what clients and servers see of it, and what it records."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest
from chat_server import Reply, Script, chat_server

from agentspec.ab.calls import Call
from agentspec.ab.proxy import RecordingProxy
from agentspec.errors import ServerError

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}


def sse(*events: dict[str, Any]) -> Reply:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return Reply(body="".join([*lines, "data: [DONE]\n\n"]).encode(), headers={"Content-Type": "text/event-stream"})


def delta(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


FINISHED = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}


def asked(
    script: Script,
    body: dict[str, Any],
    *,
    task: str = "one",
    steps: bool = False,
    path: str = "chat/completions",
) -> tuple[httpx.Response, Call]:
    with chat_server(script) as url, RecordingProxy(url.removesuffix("/v1"), asks_for_steps=steps) as proxy:
        answer = httpx.post(f"{proxy.base_url(task)}/{path}", json=body, timeout=10)
        (call,) = proxy.take()
        assert proxy.take() == []
    return answer, call


def test_a_call_is_passed_on_unchanged_and_recorded_under_its_task() -> None:
    seen: list[dict[str, Any]] = []
    answer, call = asked(lambda body: seen.append(body) or "hello", BODY, task="a/b c?")  # type: ignore[func-returns-value]
    assert seen == [BODY]
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    assert (call.task, call.path, call.prompt_tokens, call.completion_tokens) == ("a/b c?", "chat/completions", 11, 7)
    assert call.is_greedy and call.answer and not call.error and call.first is None and call.ended > call.began


def test_a_client_that_asked_for_no_counts_gets_none() -> None:
    seen: list[dict[str, Any]] = []

    def script(body: dict[str, Any]) -> Reply:
        seen.append(body)
        return sse(delta("a"), delta("b"), USAGE)

    answer, call = asked(script, {**BODY, "stream": True}, steps=True)
    assert seen[0]["stream_options"] == {"include_usage": True} and seen[0]["return_spec_tokens_details"]
    assert answer.text == sse(delta("a"), delta("b")).body.decode()
    assert call.completion_tokens == 2 and call.first is not None and call.began < call.first <= call.ended
    asked_for = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
    answer, _ = asked(script, asked_for)
    assert answer.text == sse(delta("a"), delta("b"), USAGE).body.decode()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_refusal_reaches_the_client_and_is_recorded(streamed: bool) -> None:
    answer, call = asked(lambda body: 429, {**BODY, "stream": streamed})
    assert answer.status_code == 429
    assert call.error.startswith("429") and not call.answer


def test_an_error_within_a_stream_is_recorded() -> None:
    answer, call = asked(lambda body: sse(delta("a"), {"error": {"message": "aborted"}}), {**BODY, "stream": True})
    assert "aborted" in answer.text
    assert call.error == "aborted" and not call.answer


def test_the_first_token_of_a_response_comes_with_its_first_text_and_a_failed_response_is_no_answer() -> None:
    body = {"model": "m", "input": "hi", "temperature": 0, "stream": True}
    begun = [
        {"type": f"response.{event}", "response": {"status": "in_progress"}} for event in ("created", "in_progress")
    ]
    failed = {"type": "response.failed", "response": {"output": [], "error": {"message": "out of memory"}}}
    _, call = asked(lambda body: sse(*begun, failed), body, path="responses")
    assert call.error == "out of memory" and call.first is None
    text = {"type": "response.output_text.delta", "delta": "a"}
    whole = {"type": "response.completed", "response": {"output": [{"type": "message"}], "usage": {"output_tokens": 1}}}
    _, call = asked(lambda body: sse(*begun, text, whole), body, path="responses")
    assert call.answer and not call.error and call.first is not None


def test_a_call_whose_answer_the_client_has_belongs_to_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = RecordingProxy._keep

    def late(*args: Any) -> None:
        time.sleep(0.5)
        keep(*args)

    monkeypatch.setattr(RecordingProxy, "_keep", late)
    _, call = asked(lambda body: sse(delta("a"), USAGE), {**BODY, "stream": True})
    assert call.answer


@pytest.mark.parametrize("reads_all", [True, False])
def test_a_client_that_leaves_after_the_last_event_has_its_answer(reads_all: bool) -> None:
    # More text than the buffers of a connection hold, so that the proxy is still writing when the client leaves.
    rest = [delta("x" * 100_000) for _ in range(200)]
    reply = sse(delta("a"), *rest)
    if reads_all:
        reply = Reply(body=reply.body + b": " + b"x" * 20_000_000 + b"\n", headers=reply.headers)
    with chat_server(lambda body: reply) as url, RecordingProxy(url.removesuffix("/v1")) as proxy:
        address = f"{proxy.base_url('t')}/chat/completions"
        with httpx.stream("POST", address, json={**BODY, "stream": True}, timeout=10) as answer:
            for line in answer.iter_lines():
                if not reads_all or line == "data: [DONE]":
                    break
        (call,) = proxy.take()
    assert bool(call.error) is not reads_all and bool(call.answer) is reads_all


def test_a_stream_that_breaks_off_does_not_seem_whole_to_the_client() -> None:
    reply = sse(delta("half"))
    cut = Reply(body=reply.body[:-20], headers={**reply.headers, "Content-Length": str(len(reply.body))})
    with chat_server(lambda body: cut) as url, RecordingProxy(url.removesuffix("/v1")) as proxy:
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{proxy.base_url('t')}/chat/completions", json={**BODY, "stream": True}, timeout=10)
        (call,) = proxy.take()
    assert call.error and not call.answer


def test_half_an_answer_is_none_though_its_stream_ended_in_order() -> None:
    """So a router ends it whose server has died. Some servers send no `[DONE]`."""
    streams = {name: sse(delta("half"), *end) for name, end in (("half", ()), ("whole", (FINISHED,)))}
    for name, whole in streams.items():
        reply = Reply(body=whole.body.removesuffix(b"data: [DONE]\n\n"), headers=whole.headers)
        _, call = asked(lambda body, reply=reply: reply, {**BODY, "stream": True})  # type: ignore[misc]
        assert bool(call.error) is (name == "half") and bool(call.answer) is (name == "whole")


def test_a_request_that_its_client_gives_up_is_given_up_at_once() -> None:
    late = Reply(body=b"{}", seconds=3.0)
    with chat_server(lambda body: late) as url, RecordingProxy(url.removesuffix("/v1")) as proxy:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{proxy.base_url('t')}/chat/completions", json=BODY, timeout=0.5)
        (call,) = proxy.take()
    assert call.error == "the client went away" and call.seconds < 2.0


def test_streams_of_other_calls_are_passed_on_as_they_arrive() -> None:
    # It has no end of its own.
    events = Reply(body=b"data: {}\n\n", headers={"Content-Type": "text/event-stream", "Content-Length": "1000"})
    with (
        chat_server(lambda body: events) as url,
        RecordingProxy(url.removesuffix("/v1")) as proxy,
        httpx.stream("POST", f"{proxy.base_url('t')}/messages", json=BODY, timeout=10) as answer,
    ):
        assert next(answer.iter_lines()) == "data: {}"


def test_what_a_server_repeats_of_a_wrong_request_is_not_kept() -> None:
    found = "1 error: {'type': 'list_type', 'msg': 'Input should be a list', 'input': 'a private text'}"
    for text in (found, "[type=list_type, input_value='a private text', input_type=str]", json.dumps(found)):
        _, call = asked(lambda body, text=text: Reply(status=400, body=text.encode()), BODY)  # type: ignore[misc]
        assert call.error.startswith("400: ") and "list" in call.error and "private" not in call.error


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"index": 0, "message": "text"}]},
        {"choices": [{"message": {"tool_calls": [{"function": "f"}]}}]},
        {"choices": [], "usage": {"prompt_tokens": 1, "prompt_tokens_details": [1]}},
    ],
)
def test_answers_of_any_form_reach_the_client(body: dict[str, Any]) -> None:
    answer, _ = asked(lambda _: Reply(body=json.dumps(body).encode()), BODY)
    assert (answer.status_code, answer.json()) == (200, body)


def test_a_server_that_is_gone_is_a_failed_call() -> None:
    with RecordingProxy("http://127.0.0.1:9") as proxy:
        answer = httpx.post(f"{proxy.base_url('t')}/chat/completions", json=BODY, timeout=10)
        (call,) = proxy.take()
    assert answer.status_code == 502 and "9" in call.error


def test_an_address_of_another_machine_is_refused() -> None:
    refused = pytest.raises(ServerError, match="--proxy-host must be an address of this machine")
    with refused, RecordingProxy("http://127.0.0.1:9", host="192.0.2.1"):
        pass


def test_requests_that_ask_no_model_are_passed_on_and_not_recorded() -> None:
    with chat_server(lambda body: "x") as url, RecordingProxy(url.removesuffix("/v1")) as proxy:
        # The server answers POSTs alone.
        assert httpx.get(f"{proxy.base_url('')}/models", timeout=10).status_code == 501
        assert httpx.post(f"{proxy.base_url('')}/embeddings", json={"model": "m"}, timeout=10).status_code == 200
        assert proxy.take() == []


@pytest.mark.parametrize(("key", "wanted"), [("", "client"), ("server", "server")])
def test_the_servers_key_replaces_that_of_the_client(key: str, wanted: str) -> None:
    with (
        chat_server(lambda body: "x", key=wanted) as url,
        RecordingProxy(url.removesuffix("/v1"), api_key=key) as proxy,
    ):
        address, headers = f"{proxy.base_url('')}/chat/completions", {"Authorization": "Bearer client"}
        assert httpx.post(address, json=BODY, headers=headers, timeout=10).status_code == 200
