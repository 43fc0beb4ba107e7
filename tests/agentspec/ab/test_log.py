"""A log as a workload: which requests are sent, and when."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, chat_server

from agentspec.ab.log import LogConfig, LogWorkload
from agentspec.ab.workload import Target
from agentspec.errors import ConfigError


def log_of(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def chat(session: str, *turns: tuple[str, str, float | None]) -> dict[str, Any]:
    """A session of (question, answer, seconds at which the answer was complete)."""
    messages: list[dict[str, Any]] = []
    for question, answer, seconds in turns:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer, **({} if seconds is None else {"ts": 1e9 + seconds})})
    return {"session": session, "messages": messages}


def sent(workload: LogWorkload, folder: Path, start: int = 0, count: int = 99) -> list[tuple[float, dict[str, Any]]]:
    """The calls that a server gets, each with the seconds since the workload began."""
    seen: list[tuple[float, dict[str, Any]]] = []

    def script(body: dict[str, Any]) -> str:
        seen.append((time.monotonic() - began, body))
        return "x"

    with chat_server(script) as url:
        target = Target(base_url=lambda task: url, model="served", folder=folder)
        began = time.monotonic()
        results = workload.run(start, count, target)
    assert all(not result.error for result in results)
    return seen


def test_each_call_is_sent_with_its_recorded_prompt_and_the_served_model(tmp_path: Path) -> None:
    path = log_of(tmp_path, chat("s", ("q1", "a1", None), ("q2", "a2", None)))
    bodies = [body for _, body in sent(LogWorkload([path], LogConfig(max_tokens=9)), tmp_path)]
    assert [[m["content"] for m in body["messages"]] for body in bodies] == [["q1"], ["q1", "a1", "q2"]]
    assert {(body["model"], body["temperature"], body["max_tokens"], body["stream"]) for body in bodies} == {
        ("served", 0, 9, True)
    }


def test_a_recorded_request_keeps_its_tools_and_limits_but_not_its_temperature(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    request = {"model": "other", "messages": [{"role": "user", "content": "q"}], "tools": tools, "max_tokens": 3}
    request |= {"temperature": 0.7, "stream": False, "cache_salt": "tenant"}
    path = log_of(tmp_path, {"request": request, "response": {"choices": [{"message": {"content": "a"}}]}})
    ((_, body),) = sent(LogWorkload([path], LogConfig()), tmp_path)
    assert (body["tools"], body["max_tokens"], body["temperature"], body["cache_salt"]) == (tools, 3, 0, "tenant")
    ((_, body),) = sent(LogWorkload([path], LogConfig(keep_temperature=True)), tmp_path)
    assert body["temperature"] == 0.7


def test_tool_calls_of_logs_that_keep_the_function_alone_become_those_of_the_api(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {"a": 1}}]},
        {"role": "tool", "content": "r"},
        {"role": "assistant", "content": "a"},
    ]
    path = log_of(tmp_path, {"session": "s", "messages": messages})
    bodies = [body for _, body in sent(LogWorkload([path], LogConfig()), tmp_path)]
    called = bodies[1]["messages"][1]
    assert called["content"] == "" and called["tool_calls"] == [
        {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    ]


@pytest.mark.parametrize("calls", ['[{"id": "1", "function": {"name": "f", "arguments": "{}"}}]', [None], {"a": 1}])
def test_tool_calls_in_another_form_are_sent_as_text(tmp_path: Path, calls: Any) -> None:
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "content": "r"},
        {"role": "assistant", "content": "a"},
    ]
    bodies = [body for _, body in sent(LogWorkload([log_of(tmp_path, {"messages": messages})], LogConfig()), tmp_path)]
    assert [m["role"] for m in bodies[-1]["messages"]] == ["user", "assistant", "user"]
    assert bodies[-1]["messages"][1]["content"].startswith("I look.")


def test_tools_of_other_apis_become_those_of_the_api(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {}}
    function = {"name": "f", "description": "d", "parameters": schema}
    tools = [{"type": "function", "function": function}]
    for given, choice in (
        ({"type": "function", **function}, {"type": "function", "name": "f"}),
        ({"name": "f", "description": "d", "input_schema": schema}, {"type": "auto"}),
    ):
        request = {"messages": [{"role": "user", "content": "q"}], "tools": [given, {"type": "web_search"}]}
        path = log_of(tmp_path, {"request": {**request, "tool_choice": choice}, "response": "a"})
        ((_, body),) = sent(LogWorkload([path], LogConfig()), tmp_path)
        assert body["tools"] == tools and "tool_choice" not in body


def test_a_request_with_several_answers_is_sent_once(tmp_path: Path) -> None:
    choices = [{"index": i, "message": {"content": text}} for i, text in enumerate("ab")]
    record = {"request": {"messages": [{"role": "user", "content": "q"}], "n": 2}, "response": {"choices": choices}}
    assert [body["n"] for _, body in sent(LogWorkload([log_of(tmp_path, record)], LogConfig()), tmp_path)] == [2]


def test_pauses_are_those_of_the_log_shortened_and_divided(tmp_path: Path) -> None:
    path = log_of(tmp_path, chat("s", ("q1", "a", 0.0), ("q2", "a", 1.0), ("q3", "a", 500.0)))
    times = [at for at, _ in sent(LogWorkload([path], LogConfig(speed=2.0, max_pause_s=2.0)), tmp_path)]
    # Of 0.5 and 1 s. A busy machine takes calls in late, never early.
    assert times[1] >= 0.5 and times[1] - times[0] < 0.9
    assert times[2] >= 1.5 and times[2] - times[1] < 1.6
    quick = [at for at, _ in sent(LogWorkload([path], LogConfig(speed=float("inf"))), tmp_path)]
    assert quick[2] - quick[0] < 0.4


def test_sessions_begin_in_the_order_of_the_log_and_a_slice_takes_some_of_them(tmp_path: Path) -> None:
    path = log_of(tmp_path, chat("late", ("q2", "a", 9.0)), chat("early", ("q1", "a", 1.0)))
    workload = LogWorkload([path], LogConfig())
    assert list(workload.tasks) == ["early", "late"]
    ((_, body),) = sent(workload, tmp_path, start=1, count=1)
    assert body["messages"][0]["content"] == "q2"
    assert any("one time for each call" in note for note in workload.notes)


def test_a_refused_call_ends_its_session_with_an_error(tmp_path: Path) -> None:
    path = log_of(tmp_path, chat("s", ("q1", "a", None), ("q2", "a", None)))
    workload = LogWorkload([path], LogConfig())
    with chat_server(lambda body: 400) as url:
        (result,) = workload.run(0, 1, Target(base_url=lambda task: url, model="m", folder=tmp_path))
    assert result.error.startswith("400")


def test_an_error_within_a_streamed_answer_ends_its_session_too(tmp_path: Path) -> None:
    path = log_of(tmp_path, chat("s", ("q1", "a1", None)))
    body = b'data: {"choices": []}\n\ndata: {"error": {"message": "aborted"}}\n\ndata: [DONE]\n\n'
    with chat_server(lambda _: Reply(body=body, headers={"Content-Type": "text/event-stream"})) as url:
        target = Target(base_url=lambda task: url, model="m", folder=tmp_path)
        (result,) = LogWorkload([path], LogConfig()).run(0, 1, target)
    assert result.error == "aborted"


def test_half_an_answer_ends_its_session_with_an_error(tmp_path: Path) -> None:
    half = b'data: {"choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": null}]}\n\n'
    workload = LogWorkload([log_of(tmp_path, chat("s", ("q1", "a1", None)))], LogConfig())
    with chat_server(lambda body: Reply(body=half, headers={"Content-Type": "text/event-stream"})) as url:
        (result,) = workload.run(0, 1, Target(base_url=lambda task: url, model="m", folder=tmp_path))
    assert result.error == "the stream ended before the answer did"


def test_logs_with_other_requests_are_described_otherwise(tmp_path: Path) -> None:
    described = [
        LogWorkload([log_of(tmp_path, chat("s", (question, "a", None)))], LogConfig()).describe() for question in "pqq"
    ]
    assert described[0] != described[1] == described[2]


def test_what_describes_a_log_without_pauses_is_json(tmp_path: Path) -> None:
    path = log_of(tmp_path, chat("s", ("q1", "a1", None)))
    described = LogWorkload([path], LogConfig(speed=float("inf"), max_pause_s=float("inf"))).describe()
    assert json.loads(json.dumps(described, allow_nan=False)) == described


def test_a_log_without_prompts_cannot_be_sent(tmp_path: Path) -> None:
    path = log_of(tmp_path, {"session": "s", "calls": [{"stage": "x", "output": "a"}]})
    with pytest.raises(ConfigError, match="1 calls have none"):
        LogWorkload([path], LogConfig())


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"speed": 0}, {"max_pause_s": -1}, {"calls": -1}])
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="at least|above"):
        LogConfig(**wrong)
