"""Every format is recognised by its content and read into the same calls."""

from __future__ import annotations

from typing import Any

import pytest
from every import every

from agentspec.analysis.logs.calls import BadRecordError, shown
from agentspec.analysis.logs.formats import calls_of

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "time?"}]
TOOL_CALL = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": '{"zone":"UTC"}'}}
TOOL_TEXT = '{"name": "clock", "arguments": {"zone":"UTC"}}'
CALL_ITEM = {"type": "function_call", "call_id": "1", "name": "clock", "arguments": '{"zone":"UTC"}'}
ANSWER = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
CHOICES = {"choices": [{"index": 0, "message": ANSWER}]}
CHAT = [*ASK, {"role": "assistant", "content": "noon"}, {"role": "user", "content": "sure?"}, ANSWER]

CASES: dict[str, tuple[str, Any, list[str]]] = {
    "completion as text": ("openai", {"messages": ASK, "completion": "noon"}, ["noon"]),
    "completion as choices": ("openai", {"messages": ASK, "completion": CHOICES}, [TOOL_TEXT]),
    "choices beside messages": ("openai", {"messages": ASK, **CHOICES}, [TOOL_TEXT]),
    "request and response": ("openai", {"request": {"messages": ASK}, "response": CHOICES}, [TOOL_TEXT]),
    "bodies in bodies": (
        "openai",
        {"request": {"body": {"messages": ASK}}, "response": {"status": 200, "body": CHOICES}},
        [TOOL_TEXT],
    ),
    "prompt and completion": ("openai", {"prompt": "time?", "completion": "noon"}, ["noon"]),
    "text choices": ("openai", {"prompt": "time?", "choices": [{"text": "noon"}, {"text": "one"}]}, ["noon", "one"]),
    "openhands": ("openhands", {"messages": ASK, "response": CHOICES, "args": {}, "cost": 0.1}, [TOOL_TEXT]),
    "chat": ("chat", {"messages": CHAT}, ["noon", TOOL_TEXT]),
    "mini-swe-agent": ("mini-swe-agent", {"info": {}, "messages": CHAT, "trajectory_format": "x"}, ["noon", TOOL_TEXT]),
    "sharegpt": (
        "sharegpt",
        {"id": "a", "conversations": [{"from": "human", "value": "time?"}, {"from": "gpt", "value": "noon"}]},
        ["noon"],
    ),
    "swe-agent": (
        "swe-agent",
        {"history": [{**CHAT[2], "is_demo": True}, *CHAT], "trajectory": [], "info": {}},
        ["noon", TOOL_TEXT],
    ),
    "swe-agent without history": (
        "swe-agent",
        {"trajectory": [{"response": "ls", "observation": "a.py"}, {"response": "cat a.py"}]},
        ["ls", "cat a.py"],
    ),
    "openhands, newer": (
        "openhands",
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "time?"}]}],
            "tools": [{"type": "function", "function": {"name": "clock"}}],
            "kwargs": {"temperature": 0.0},
            "context_window": 4096,
            "response": {"id": "c1", **CHOICES, "usage": {"prompt_tokens": 3}},
            "cost": 0.0,
            "timestamp": 1767225600.25,
            "latency_sec": 0.5,
        },
        [TOOL_TEXT],
    ),
    "openhands, what was really written": (
        "openhands",
        {
            "messages": ASK,
            "response": CHOICES,
            "raw_response": {"choices": [{"message": {"role": "assistant", "content": "<function=clock>"}}]},
            "cost": 0.0,
        },
        ["<function=clock>"],
    ),
    "openhands, functions written as text": (
        "openhands",
        {
            "messages": ASK,
            "response": {"choices": [{"message": {"role": "assistant", "content": "<function=clock>"}}]},
            "args": [],
            "kwargs": {"stop": ["</function"]},
            "timestamp": 1767225600.25,
            "cost": None,
            "fncall_messages": CHAT,
            "fncall_response": CHOICES,
        },
        ["<function=clock>"],
    ),
    "responses": (
        "openai",
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "time?"}]},
                {"type": "reasoning", "id": "rs", "summary": []},
                CALL_ITEM,
                {"type": "function_call_output", "call_id": "1", "output": "12:00"},
            ],
            "response": {
                "object": "response",
                "output": [
                    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "It is noon."}]},
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "noon"}]},
                    CALL_ITEM,
                ],
            },
        },
        ["It is noon.\nnoon\n" + TOOL_TEXT],
    ),
    "reasoning": (
        "openai",
        {"messages": ASK, "choices": [{"message": {"content": "noon", "reasoning_content": "It is noon."}}]},
        ["It is noon.\nnoon"],
    ),
    "mini-swe-agent, newer": (
        "mini-swe-agent",
        {
            "info": {"mini_version": "2.0.0", "exit_status": "Submitted"},
            "messages": [
                *ASK,
                {**ANSWER, "reasoning_content": "It is noon.", "extra": {"actions": [], "timestamp": 1767225600.5}},
                {"role": "tool", "tool_call_id": "1", "content": "12:00", "extra": {"returncode": 0}},
                {"role": "exit", "content": "noon", "extra": {"exit_status": "Submitted"}},
            ],
            "trajectory_format": "mini-swe-agent-1.1",
        },
        ["It is noon.\n" + TOOL_TEXT],
    ),
    "mini-swe-agent, responses": (
        "mini-swe-agent",
        {
            "info": {},
            "messages": [
                *ASK,
                {"object": "response", "output": [CALL_ITEM], "extra": {}},
                {"type": "function_call_output", "call_id": "1", "output": "12:00"},
            ],
            "trajectory_format": "mini-swe-agent-1.1",
        },
        [TOOL_TEXT],
    ),
    "sharegpt with functions": (
        "sharegpt",
        {
            "conversations": [
                {"from": "human", "value": "time?"},
                {"from": "function_call", "value": TOOL_TEXT},
                {"from": "observation", "value": "12:00"},
                {"from": "gpt", "value": "noon"},
            ],
            "system": "Be brief.",
            "tools": "[]",
        },
        [TOOL_TEXT, "noon"],
    ),
    "swe-agent, newer": (
        "swe-agent",
        {
            "trajectory": [
                {
                    "action": "clock",
                    "observation": "12:00",
                    "response": "I look.",
                    "thought": "I look.",
                    "execution_time": 0.1,
                    "state": {"working_dir": "/"},
                    "query": ASK,
                    "extra_info": {},
                }
            ],
            "history": [
                {**ASK[0], "agent": "main", "message_type": "system_prompt"},
                {"role": "user", "content": "an example", "is_demo": True, "message_type": "demonstration"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "time?", "cache_control": {"type": "ephemeral"}}],
                },
                {
                    **ANSWER,
                    "content": "I look.",
                    "thought": "I look.",
                    "action": "clock",
                    "agent": "main",
                    "message_type": "action",
                    "thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "x"}],
                },
                {"role": "tool", "content": "12:00", "tool_call_ids": ["1"], "message_type": "observation"},
            ],
            "info": {"exit_status": "submitted", "model_stats": {"api_calls": 1}},
            "replay_config": "{}",
            "environment": "swe_main",
        },
        ["Hm.\nI look.\n" + TOOL_TEXT],
    ),
    "swe-agent, several attempts": (
        "swe-agent",
        {
            "attempts": [
                {"history": CHAT, "trajectory": [], "info": {}},
                {"history": CHAT[:3], "trajectory": [], "info": {}},
            ],
            "history": CHAT,
            "info": {},
        },
        ["noon", TOOL_TEXT, "noon"],
    ),
    "staged": ("staged", {"calls": [{"stage": "plan", "output": "one"}]}, ["one"]),
}


def test_stages_have_a_prompt_where_messages_were_recorded() -> None:
    record = {"session": "s", "calls": [{"stage": "plan", "output": "one", "messages": ASK}]}
    (call,) = calls_of(record, "")[1]
    assert (
        call.has_prompt
        and call.labels.role == "plan"
        and call.header == calls_of({"messages": ASK, "completion": "x"}, "")[1][0].header
    )


@every("name", CASES)
def test_outputs_are_read(name: str) -> None:
    expected_format, record, outputs = CASES[name]
    found, calls = calls_of(record, "fallback")
    assert found == expected_format
    assert [call.output for call in calls] == outputs


def test_prompts_end_before_their_outputs() -> None:
    _, (first, second) = calls_of({"messages": CHAT}, "")
    assert first.messages == (("system", "Be brief."), ("user", "time?"))
    assert second.messages == (*first.messages, ("assistant", "noon"), ("user", "sure?"))


def test_items_of_one_turn_are_one_message() -> None:
    _, (call,) = calls_of(CASES["responses"][1], "")
    assert call.messages == (
        *(("system", "Be brief."), ("user", "time?"), ("assistant", TOOL_TEXT), ("tool", "12:00")),
    )


def test_reasoning_is_written_and_not_read_again() -> None:
    later = [*ASK, {**ANSWER, "reasoning_content": "It is noon."}, {"role": "assistant", "content": "noon"}]
    _, (first, second) = calls_of({"messages": later}, "")
    assert first.output.startswith("It is noon.") and second.messages[-1] == ("assistant", TOOL_TEXT)


def test_attempts_are_sessions_of_their_own() -> None:
    _, calls = calls_of(CASES["swe-agent, several attempts"][1], "run/task")
    assert [call.labels.session for call in calls] == ["run/task/1", "run/task/1", "run/task/2"]


def test_token_ids_are_read_without_the_prompts_end() -> None:
    found, (call,) = calls_of({"request_id": "r", "tokens": [5, 6, 7], "num_prompt_tail": 1, "namespace": "acme"}, "")
    assert (found, call.tokens, call.labels.session, call.labels.tenant) == ("tokens", (6, 7), "r", "acme")


def test_labels_come_from_fields_and_metadata() -> None:
    record = {"messages": ASK, "completion": "x", "user": "acme", "created": 1767225600, "metadata": {"stage": "plan"}}
    labels = calls_of(record, "")[1][0].labels
    assert (labels.role, labels.tenant, labels.day) == ("plan", "acme", "2026-01-01")


def test_requests_that_go_on_from_one_another_are_one_session() -> None:
    later = [*ASK, {"role": "assistant", "content": "noon"}, {"role": "user", "content": "sure?"}]
    other = [ASK[0], {"role": "user", "content": "place?"}]
    sessions = [calls_of({"messages": m, "completion": "x"}, "")[1][0].labels.session for m in (ASK, later, other)]
    assert sessions[0] == sessions[1] != sessions[2]


@every(
    "record",
    [
        3,
        [],
        {},
        {"id": 4},
        {"messages": "hello"},
        {"messages": [{"content": "no role"}]},
        {"messages": ASK},
        {"messages": ASK, "completion": 7},
        {"messages": ASK, "completion": {"choices": 4}},
        {"conversations": [{"from": "gpt"}]},
        {"calls": [{"stage": "plan"}]},
        {"trajectory": [3]},
        {"tokens": ["a"]},
        {"tokens": [1], "num_prompt_tail": 1},
    ],
)
def test_what_is_no_record_says_why(record: Any) -> None:
    with pytest.raises(ValueError, match="."):
        calls_of(record, "")


def test_names_are_shown_without_control_characters_and_cut() -> None:
    assert shown("pl\x1b[31man\u202e\n x") == "pl [31man x"
    assert len(shown("n" * 500)) == 48


def test_bad_fields_are_named_without_their_values() -> None:
    with pytest.raises(BadRecordError, match="secret_field") as error:
        calls_of({"secret_field": "password"}, "")
    assert "password" not in str(error.value)
