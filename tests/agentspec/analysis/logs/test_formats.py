"""Every format is recognised by its content and read into the same calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from every import every

from agentspec.analysis.logs.account import Account
from agentspec.analysis.logs.calls import BadRecordError, NoAnswerError, shown
from agentspec.analysis.logs.formats import calls_of

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "time?"}]
TOOL_CALL = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": '{"zone":"UTC"}'}}
TOOL_TEXT = '{"name": "clock", "arguments": {"zone":"UTC"}}'
CALL_ITEM = {"type": "function_call", "call_id": "1", "name": "clock", "arguments": '{"zone":"UTC"}'}
ANSWER = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
CHOICES = {"choices": [{"index": 0, "message": ANSWER}]}
CHAT = [*ASK, {"role": "assistant", "content": "noon"}, {"role": "user", "content": "sure?"}, ANSWER]

TOOL_TEXT_SPACED = '{"name": "clock", "arguments": {"zone": "UTC"}}'
BLOCKS = [
    {"type": "thinking", "thinking": "It is noon.", "signature": "s"},
    {"type": "text", "text": "I look."},
    {"type": "tool_use", "id": "1", "name": "clock", "input": {"zone": "UTC"}},
]


def chunk(**delta: Any) -> dict[str, Any]:
    return {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}


CHUNKS = [
    chunk(role="assistant", content="no"),
    chunk(content="on"),
    chunk(tool_calls=[{"index": 0, "id": "1", "function": {"name": "clock", "arguments": '{"zone"'}}]),
    chunk(tool_calls=[{"index": 0, "function": {"arguments": ':"UTC"}'}}]),
    {"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": {"completion_tokens": 5}},
]


def sse(events: list[dict[str, Any]], named: bool = False) -> str:
    lines = [(f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join(lines) + ("" if named else "data: [DONE]\n\n")


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
    "anthropic": (
        "openai",
        {
            "request": {"system": [{"type": "text", "text": "Be brief."}], "messages": ASK[1:], "max_tokens": 9},
            "response": {"type": "message", "role": "assistant", "content": BLOCKS, "stop_reason": "tool_use"},
        },
        ["It is noon.\nI look.\n" + TOOL_TEXT_SPACED],
    ),
    "anthropic chat": (
        "chat",
        {
            "messages": [
                ASK[1],
                {"role": "assistant", "content": BLOCKS},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "12:00"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "noon"}]},
            ]
        },
        ["It is noon.\nI look.\n" + TOOL_TEXT_SPACED, "noon"],
    ),
    "what a server's tool answered was written by no model": (
        "chat",
        {
            "messages": [
                ASK[1],
                {
                    "role": "assistant",
                    "content": [
                        {"type": "server_tool_use", "id": "1", "name": "clock", "input": {"zone": "UTC"}},
                        {
                            "type": "web_search_tool_result",
                            "tool_use_id": "1",
                            "content": [
                                {"type": "web_search_result", "title": "12:00", "url": "u", "encrypted_content": "x"}
                            ],
                        },
                        {"type": "text", "text": "noon"},
                    ],
                },
            ]
        },
        [TOOL_TEXT_SPACED + "\nnoon"],
    ),
    "responses of all types": (
        "openai",
        {
            "input": "time?",
            "response": {
                "object": "response",
                "output": [
                    {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c"},
                    {"type": "local_shell_call", "action": {"command": ["date"]}, "call_id": "d"},
                    {"type": "web_search_call", "id": "w", "status": "completed"},
                    {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "time"}},
                    {"type": "mcp_call", "name": "clock", "arguments": "{}", "output": "12:00"},
                    {"type": "code_interpreter_call", "code": "print(1)", "outputs": [{"type": "logs", "logs": "1"}]},
                    {"type": "image_generation_call", "result": "aGk="},
                    {
                        "type": "message",
                        "role": "assistant",
                        "content": [
                            {"type": "output_text", "text": "noon", "annotations": []},
                            {"type": "refusal", "refusal": "no"},
                        ],
                    },
                ],
            },
        },
        [
            (
                '{"name": "apply_patch", "arguments": *** Begin}\n{"name": "local_shell", "arguments": {"command": ["date"]}}\n'
                '{"name": "web_search", "arguments": {"type": "search", "query": "time"}}\n'
                '{"name": "clock", "arguments": {}}\n{"name": "code_interpreter", "arguments": print(1)}\nnoonno'
            )
        ],
    ),
    "legacy function call": (
        "chat",
        {
            "messages": [
                ASK[1],
                {"role": "assistant", "content": None, "function_call": TOOL_CALL["function"]},
                {"role": "function", "name": "clock", "content": "12:00"},
                {"role": "assistant", "content": "noon"},
            ]
        },
        [TOOL_TEXT, "noon"],
    ),
    "arguments called args": (
        "chat",
        {
            "messages": [
                {"type": "human", "content": "time?"},
                {
                    "type": "ai",
                    "content": "I look.",
                    "tool_calls": [{"name": "clock", "args": {"zone": "UTC"}, "id": "1"}],
                },
            ]
        },
        ["I look.\n" + TOOL_TEXT_SPACED],
    ),
    "messages as a string": ("chat", {"instance_id": "i", "messages": json.dumps(CHAT)}, ["noon", TOOL_TEXT]),
    "an answer that is JSON stays as it is": (
        "openai",
        {"prompt": "time?", "completion": '{"output": [1], "type": "text"}'},
        ['{"output": [1], "type": "text"}'],
    ),
    "helicone": ("openai", {"request_body": {"messages": ASK}, "response_body": CHOICES}, [TOOL_TEXT]),
    "batch": ("openai", {"custom_id": "1", "response": {"status_code": 200, "body": CHOICES}}, [TOOL_TEXT]),
    "gemini": (
        "openai",
        {
            "request": {"contents": [{"role": "user", "parts": [{"text": "time?"}]}]},
            "response": {
                "candidates": [
                    {
                        "content": {
                            "role": "model",
                            "parts": [
                                {"text": "Hm.", "thought": True},
                                {"text": "I look."},
                                {"functionCall": {"name": "clock", "args": {"zone": "UTC"}}},
                            ],
                        }
                    }
                ]
            },
        },
        ["Hm.\nI look.\n" + TOOL_TEXT_SPACED],
    ),
    "bedrock": (
        "openai",
        {
            "request": {"messages": [{"role": "user", "content": [{"text": "time?"}]}]},
            "response": {
                "output": {
                    "message": {
                        "role": "assistant",
                        "content": [
                            {"text": "I look."},
                            {"toolUse": {"toolUseId": "1", "name": "clock", "input": {"zone": "UTC"}}},
                        ],
                    }
                }
            },
        },
        ["I look.\n" + TOOL_TEXT_SPACED],
    ),
    "sglang": (
        "openai",
        {
            "request": {"text": "time?", "sampling_params": {}},
            "response": {"text": "noon", "output_ids": [5], "meta_info": {}},
        },
        ["noon"],
    ),
    "sglang's log": (
        "sglang",
        {"event": "request.finished", "rid": "a", "obj": {"text": "time?"}, "out": {"text": "noon", "meta_info": {}}},
        ["noon"],
    ),
    "stream of chunks": ("openai", {"request": {"messages": ASK}, "response": CHUNKS}, ["noon\n" + TOOL_TEXT]),
    "stream as text": ("openai", {"request": {"messages": ASK}, "response": sse(CHUNKS)}, ["noon\n" + TOOL_TEXT]),
    "anthropic's stream": (
        "openai",
        {
            "request": {"messages": ASK},
            "response": sse(
                [
                    {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": []}},
                    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I lo"}},
                    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ok."}},
                    {
                        "type": "content_block_start",
                        "index": 1,
                        "content_block": {"type": "tool_use", "id": "1", "name": "clock", "input": {}},
                    },
                    {
                        "type": "content_block_delta",
                        "index": 1,
                        "delta": {"type": "input_json_delta", "partial_json": '{"zone":'},
                    },
                    {
                        "type": "content_block_delta",
                        "index": 1,
                        "delta": {"type": "input_json_delta", "partial_json": '"UTC"}'},
                    },
                    {"type": "message_stop"},
                ],
                named=True,
            ),
        },
        ["I look.\n" + TOOL_TEXT],
    ),
    "stream of the Responses API": (
        "openai",
        {
            "input": "time?",
            "response": [
                {"type": "response.created", "response": {"id": "r", "output": []}},
                {"type": "response.output_text.delta", "delta": "no"},
                {
                    "type": "response.completed",
                    "response": {
                        "id": "r",
                        "object": "response",
                        "output": [
                            {
                                "type": "message",
                                "role": "assistant",
                                "content": [{"type": "output_text", "text": "noon"}],
                            }
                        ],
                    },
                },
            ],
        },
        ["noon"],
    ),
    "langfuse": (
        "langfuse",
        {"type": "GENERATION", "traceId": "t", "input": json.dumps(ASK), "output": json.dumps(ANSWER)},
        [TOOL_TEXT],
    ),
    "langsmith": (
        "langsmith",
        {
            "run_type": "llm",
            "trace_id": "t",
            "inputs": {
                "messages": [
                    [{"lc": 1, "type": "constructor", "id": ["x", "HumanMessage"], "kwargs": {"content": "time?"}}]
                ]
            },
            "outputs": {
                "generations": [
                    [
                        {
                            "text": "I look.",
                            "type": "ChatGeneration",
                            "message": {
                                "lc": 1,
                                "type": "constructor",
                                "id": ["x", "AIMessage"],
                                "kwargs": {
                                    "content": "I look.",
                                    "tool_calls": [{"name": "clock", "args": {"zone": "UTC"}, "id": "1"}],
                                    "additional_kwargs": {"tool_calls": [TOOL_CALL]},
                                },
                            },
                        }
                    ]
                ],
                "llm_output": None,
            },
        },
        ["I look.\n" + TOOL_TEXT_SPACED],
    ),
    "opentelemetry": (
        "opentelemetry",
        {
            "name": "chat m",
            "trace_id": "t",
            "attributes": {
                "gen_ai.operation.name": "chat",
                "gen_ai.input.messages": json.dumps(
                    [{"role": "user", "parts": [{"type": "text", "content": "time?"}]}]
                ),
                "gen_ai.output.messages": json.dumps(
                    [
                        {
                            "role": "assistant",
                            "finish_reason": "tool_call",
                            "parts": [
                                {"type": "reasoning", "content": "Hm."},
                                {"type": "text", "content": "I look."},
                                {"type": "tool_call", "id": "1", "name": "clock", "arguments": {"zone": "UTC"}},
                            ],
                        }
                    ]
                ),
            },
        },
        ["Hm.\nI look.\n" + TOOL_TEXT_SPACED],
    ),
    "opentelemetry, older, as the protocol has it": (
        "opentelemetry",
        {
            "name": "m.chat",
            "spanId": "s",
            "attributes": [
                {"key": "gen_ai.system", "value": {"stringValue": "x"}},
                {"key": "gen_ai.prompt.0.role", "value": {"stringValue": "user"}},
                {"key": "gen_ai.prompt.0.content", "value": {"stringValue": "time?"}},
                {"key": "gen_ai.completion.0.role", "value": {"stringValue": "assistant"}},
                {"key": "gen_ai.completion.0.content", "value": {"stringValue": "I look."}},
                {"key": "gen_ai.completion.0.tool_calls.0.name", "value": {"stringValue": "clock"}},
                {"key": "gen_ai.completion.0.tool_calls.0.arguments", "value": {"stringValue": '{"zone":"UTC"}'}},
            ],
        },
        ["I look.\n" + TOOL_TEXT],
    ),
    "openinference": (
        "opentelemetry",
        {
            "name": "ChatCompletion",
            "context": {"trace_id": "t"},
            "attributes": {
                "openinference.span.kind": "LLM",
                "llm.input_messages.0.message.role": "user",
                "llm.input_messages.0.message.content": "time?",
                "llm.output_messages.0.message.role": "assistant",
                "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "clock",
                "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"zone":"UTC"}',
            },
        },
        [TOOL_TEXT],
    ),
    "tau-bench": (
        "tau-bench",
        {"task_id": 3, "trial": 1, "reward": 1.0, "info": {}, "traj": CHAT},
        ["noon", TOOL_TEXT],
    ),
    "trajectory of messages": (
        "chat",
        {
            "instance_id": "i",
            "trajectory": [
                {"role": "system", "system_prompt": "Be brief.", "text": None},
                {"role": "user", "text": "time?"},
                {"role": "ai", "text": "noon", "mask": False},
            ],
        },
        ["noon"],
    ),
    "openhands output": (
        "openhands-output",
        {
            "instance_id": "i",
            "instruction": "time?",
            "history": [
                {"id": 0, "source": "user", "action": "message", "args": {"content": "time?"}},
                {"id": 1, "source": "agent", "action": "run", "args": {"command": "date", "thought": "I look."}},
                {"id": 2, "source": "agent", "observation": "run", "content": "12:00"},
                {"id": 3, "source": "agent", "action": "finish", "args": {"final_thought": "noon", "outputs": {}}},
            ],
        },
        ['I look.\n{"name": "run", "arguments": {"command": "date"}}', "noon"],
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
    account = Account()
    found, calls = calls_of(record, "fallback", account)
    assert found == expected_format
    assert [call.output for call in calls] == outputs
    assert not account.unknown


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


@every(
    "record",
    {
        "failed request": {"status": "failure", "messages": ASK, "response": {}, "error_str": "timeout"},
        "failed request, null": {"status": "failure", "messages": ASK, "response": None},
        "redacted": {
            "messages": [{"role": "user", "content": "redacted-by-litellm"}],
            "response": "redacted-by-litellm",
        },
        "redacted otherwise": {"prompt": "time?", "completion": "[REDACTED]"},
        "empty": {"prompt": "time?", "completion": ""},
        "span of a tool": {"type": "SPAN", "traceId": "t", "input": {"a": 1}, "output": {"b": 2}},
        "run of a chain": {"run_type": "chain", "inputs": {}, "outputs": {"output": "x"}},
        "agent's span": {
            "name": "a",
            "attributes": {"gen_ai.operation.name": "invoke_agent", "gen_ai.output.messages": "[]"},
        },
        "span without texts": {"name": "a", "attributes": {"gen_ai.operation.name": "chat", "gen_ai.system": "x"}},
        "request without answer": {"event": "request.received", "rid": "a", "obj": {"text": "time?"}},
        "answer that was not logged": {"event": "request.finished", "rid": "a", "obj": {}, "out": {"meta_info": {}}},
    }.items(),
)
def test_what_no_model_answered_is_told_apart(record: tuple[str, Any]) -> None:
    with pytest.raises(NoAnswerError, match="."):
        calls_of(record[1], "")


def test_a_text_that_sglang_cut_is_not_taken_for_an_answer() -> None:
    out = {"text": "a" * 1024 + "..." + "b" * 1024, "meta_info": {}}
    with pytest.raises(NoAnswerError, match="level 3"):
        calls_of({"event": "request.finished", "rid": "a", "obj": {"text": "time?"}, "out": out}, "")
    _, (call,) = calls_of(
        {"event": "request.finished", "rid": "a", "obj": {}, "out": {**out, "output_ids": [5, 6]}}, ""
    )
    assert call.tokens == (5, 6)


def test_what_is_not_known_is_counted() -> None:
    account = Account()
    answer = {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "noon"},
            {"type": "hologram", "beam": "light"},
            {"type": "image", "data": "x"},
        ],
        "whim": "odd",
        "echo": "noon",
    }
    user = {"role": "user", "content": [{"type": "smell", "of": "rose"}]}
    _, (call,) = calls_of({"messages": [user, answer], "extra_texts": ["abc"], "tags": [3]}, "", account)
    assert call.output == "noon"
    assert {key: (tally.count, tally.characters) for key, tally in account.unknown.items()} == {
        ("output", "block hologram"): (1, 13),
        ("output", "message.whim"): (1, 3),
        ("prompt", "block smell"): (1, 9),
        ("record", "chat.extra_texts"): (1, 3),
    }
    assert [key for key, _ in account.left_out.items()] == [("output", "block image")]
    assert account.understood("output") == pytest.approx(4 / (4 + 13 + 3))
