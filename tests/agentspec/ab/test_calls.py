"""What a call's record says of a request and its answer."""

from __future__ import annotations

from typing import Any

import pytest

from agentspec.ab.calls import AnswerReader, Call, busy_seconds, is_greedy, request_digest

PATH = "chat/completions"


def test_requests_are_equal_whatever_they_call_the_model_and_however_they_are_sent() -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "temperature": 0}
    sent = {**body, "model": "x", "stream": True, "stream_options": {"include_usage": True}, "user": "me"}
    assert request_digest(PATH, body) == request_digest(PATH, sent)
    assert request_digest(PATH, body) != request_digest(PATH, {**body, "temperature": 1})
    assert request_digest(PATH, body) != request_digest("completions", body)


def whole(content: str | None, arguments: str | None = None, finish: str = "stop") -> dict[str, Any]:
    tools = [{"id": "drawn", "function": {"name": "f", "arguments": arguments}}] if arguments is not None else None
    message = {"role": "assistant", "content": content, "tool_calls": tools}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": {"completion_tokens": 3}}


def events(pieces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    deltas = [{"choices": [{"index": 0, "delta": piece}]} for piece in pieces]
    return [*deltas, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]


def digest_of(body: dict[str, Any]) -> str:
    reader = AnswerReader(PATH)
    reader.read(body)
    return reader.digest()


def streamed_digest(pieces: list[dict[str, Any]]) -> str:
    reader = AnswerReader(PATH)
    for event in events(pieces):
        reader.read_event(event)
    return reader.digest()


def test_a_streamed_answer_equals_the_same_answer_in_one_piece() -> None:
    assert streamed_digest([{"role": "assistant", "content": ""}, {"content": "ab"}, {"content": "c"}]) == digest_of(
        whole("abc")
    )
    tool = [
        {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]},
    ]
    assert streamed_digest(tool) == digest_of(whole(None, '{"a": 1}'))


@pytest.mark.parametrize(
    "other", [whole("abd"), whole("abc", "{}"), whole("abc", finish="length"), whole("ab")], ids=str
)
def test_answers_that_differ_have_other_digests(other: dict[str, Any]) -> None:
    assert digest_of(other) != digest_of(whole("abc"))


def test_counts_of_tokens_and_steps_are_read_from_every_api() -> None:
    chat = AnswerReader(PATH)
    chat.read(
        {
            **whole("a"),
            "usage": {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
            "sglext": {"spec_tokens_details": {"spec_verify_ct": 2}},
        }
    )
    assert (chat.tokens(), chat.verify_steps) == ({"prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 2}, 2)
    own = AnswerReader("generate")
    own.read({"text": "a", "meta_info": {"prompt_tokens": 5, "completion_tokens": 3, "spec_verify_ct": 2}})
    assert (own.tokens()["completion_tokens"], own.verify_steps) == (3, 2)
    response = {
        "output": [{"type": "message", "id": "drawn", "content": [{"text": "a"}]}],
        "usage": {"output_tokens": 3},
    }
    for end in ("completed", "incomplete"):
        responses = AnswerReader("responses")
        responses.read_event({"type": f"response.{end}", "response": response})
        assert responses.tokens()["completion_tokens"] == 3 and responses.digest()


def test_only_the_likeliest_tokens_are_greedy() -> None:
    assert is_greedy(PATH, {"temperature": 0})
    assert is_greedy(PATH, {"temperature": 1, "top_k": 1})
    # A server's default temperature is rarely 0.
    assert not is_greedy(PATH, {})
    assert is_greedy("generate", {"sampling_params": {"temperature": 0}})
    assert not is_greedy("generate", {"temperature": 0})


def test_overlapping_calls_are_counted_once() -> None:
    calls = [Call(task="", path=PATH, began=began, ended=ended) for began, ended in ((0, 4), (1, 2), (3, 6), (8, 9))]
    assert busy_seconds(calls) == 7
