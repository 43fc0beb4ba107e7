"""Every format is recognised by its content and read into the same calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from every import every

from agentspec.analysis.logs.account import Account
from agentspec.analysis.logs.calls import BadRecordError, NoAnswerError, shown
from agentspec.analysis.logs.formats import calls_of

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "time?"}]
TOOL_CALL = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": '{"zone":"UTC"}'}}
ANSWER = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
CHAT = [*ASK, {"role": "assistant", "content": "noon"}, {"role": "user", "content": "sure?"}, ANSWER]


# Each line of the file is a case: its name, the format, a record as it stands in a log, and the outputs read from it.
with (Path(__file__).parent / "formats.jsonl").open(encoding="utf-8") as _file:
    CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in map(json.loads, _file)}


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
    case = CASES[name]
    account = Account()
    found, calls = calls_of(case["record"], "fallback", account)
    assert (found, [call.output for call in calls]) == (case["format"], case["outputs"])
    assert not account.unknown


def test_a_stream_may_hold_any_text_of_a_model() -> None:
    said = '{"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "a\u2028b\x85"}}]}'
    for stream in (f"data: {said}\n\n" * 2 + "data: [DONE]\n\n", f"{said}\n" * 2):
        (call,) = calls_of({"request": {"messages": ASK}, "response": stream}, "")[1]
        assert call.output == "a\u2028b\x85" * 2


def test_prompts_end_before_their_outputs() -> None:
    _, (first, second) = calls_of({"messages": CHAT}, "")
    assert first.messages == (("system", "Be brief."), ("user", "time?"))
    assert second.messages == (*first.messages, ("assistant", "noon"), ("user", "sure?"))


def test_attempts_are_sessions_of_their_own() -> None:
    _, calls = calls_of(CASES["swe-agent, several attempts"]["record"], "run/task")
    assert [call.labels.session for call in calls] == ["run/task/1", "run/task/1", "run/task/2"]


def test_token_ids_are_read_without_the_prompts_end() -> None:
    found, (call,) = calls_of({"request_id": "r", "tokens": [5, 6, 7], "num_prompt_tail": 1, "namespace": "acme"}, "")
    assert (found, call.tokens, call.labels.session, call.labels.tenant) == ("tokens", (6, 7), "r", "acme")


def test_labels_come_from_fields_and_metadata() -> None:
    record = {"messages": ASK, "completion": "x", "user": "acme", "created": 1767225600, "metadata": {"stage": "plan"}}
    labels = calls_of(record, "")[1][0].labels
    assert (labels.role, labels.tenant, labels.day) == ("plan", "acme", "2026-01-01")
    asked = {**record, "user": "How do I reset my password?"}
    assert calls_of(asked, "")[1][0].labels.tenant == ""


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
        {"messages": ASK, "completion": [{"object": "chat.completion.chunk", "choices": 4}]},
        {"messages": ASK, "completion": [{"contentBlockDelta": 4}]},
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
