"""Sessions whose messages are in several lines, events, and chunks: each answer is counted once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from logs import write_lines

from agentspec.analysis.logs.calls import LoggedCall
from agentspec.analysis.logs.source import LogReading, log_files, read_calls


def calls(*paths: Path) -> tuple[list[LoggedCall], LogReading]:
    reading = LogReading()
    return [call for _, call in read_calls(log_files(paths), reading)], reading


def line(kind: str, uuid: str, content: Any, session: str = "s1", **fields: Any) -> dict[str, Any]:
    identity = {"id": fields.pop("message_id"), "type": "message", "model": "m"} if kind == "assistant" else {}
    message = {"role": kind, "content": content, **identity}
    return {
        "type": kind,
        "sessionId": session,
        "uuid": uuid,
        "timestamp": "2026-01-01T00:00:00Z",
        "message": message,
        **fields,
    }


def tool_use(identity: str, command: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": "Bash", "input": {"command": command}}


def tool_result(identity: str, text: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, "content": text}


CLAUDE_CODE = [
    {"type": "summary", "summary": "a title", "leafUuid": "x"},
    line("user", "u1", "list"),
    line("assistant", "a1", [{"type": "thinking", "thinking": "Hm.", "signature": "s"}], message_id="m1"),
    line("assistant", "a2", [{"type": "text", "text": "I look."}], message_id="m1"),
    line("assistant", "a3", [tool_use("t1", "ls")], message_id="m1"),
    line("user", "u2", [tool_result("t1", "a.py")], toolUseResult={"stdout": "a.py"}),
    # Calls of one message with the answer of the first between them.
    line("assistant", "a4", [tool_use("t2", "pwd")], message_id="m1"),
    line("user", "u3", [tool_result("t2", "/")]),
    line("assistant", "a5", [{"type": "text", "text": "done"}], message_id="m2"),
    line("assistant", "a6", [{"type": "text", "text": "limit reached"}], message_id="m3", isApiErrorMessage=True),
    line("assistant", "a7", [{"type": "text", "text": "aside"}], message_id="m4", isSidechain=True, agentId="b"),
]
CALL = '{"name": "Bash", "arguments": {"command": "%s"}}'


def test_messages_of_claude_code_are_put_together(tmp_path: Path) -> None:
    found, reading = calls(write_lines(tmp_path / "s1.jsonl", CLAUDE_CODE))
    assert [call.output for call in found] == [f"Hm.\nI look.\n{CALL % 'ls'}\n{CALL % 'pwd'}", "done", "aside"]
    assert found[1].messages == (
        ("user", "list"), ("assistant", f"I look.\n{CALL % 'ls'}\n{CALL % 'pwd'}"), ("tool", "a.py"), ("tool", "/"),
    )  # fmt: skip
    assert found[2].messages == ()
    assert reading.formats == {"claude-code": 3} and not reading.account.unknown and not reading.num_bad
    assert reading.account.skipped["a message that the agent's program wrote itself"] == 1


def test_a_session_that_was_resumed_is_counted_once(tmp_path: Path) -> None:
    write_lines(tmp_path / "s1.jsonl", CLAUDE_CODE[:9])
    again = [{**record, "sessionId": "s2"} for record in CLAUDE_CODE[1:9]]
    more = line("assistant", "a9", [{"type": "text", "text": "more"}], "s2", message_id="m9")
    write_lines(tmp_path / "s2.jsonl", [*again, line("user", "u9", "go on", "s2"), more])
    found, reading = calls(tmp_path)
    assert [call.output for call in found][1:] == ["done", "more"] and len(found) == 3
    assert reading.account.left_out["output", "message that another file has too"].count == 2
    assert found[2].messages[-2:] == (("assistant", "done"), ("user", "go on"))


def test_prompts_begin_anew_after_a_summary(tmp_path: Path) -> None:
    cut = {"type": "system", "subtype": "compact_boundary", "sessionId": "s1", "uuid": "c"}
    summary = line("user", "u8", "This goes on from: ...", isCompactSummary=True)
    answer = line("assistant", "a8", [{"type": "text", "text": "on"}], message_id="m8")
    found, _ = calls(write_lines(tmp_path / "s1.jsonl", [*CLAUDE_CODE[:9], cut, summary, answer]))
    assert [call.output for call in found][1:] == ["done", "on"]
    assert found[2].messages == (("user", "This goes on from: ..."),)


def test_lines_that_are_not_known_are_counted(tmp_path: Path) -> None:
    odd = {"type": "hologram", "sessionId": "s1", "text": "abcdefgh"}
    _, reading = calls(write_lines(tmp_path / "s1.jsonl", [*CLAUDE_CODE, odd]))
    ((key, tally),) = reading.account.unknown.items()
    assert key == ("record", "claude-code line of the type hologram") and tally.count == 1


def item(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": "response_item", "payload": {"type": kind, **payload}}


def test_turns_of_codex(tmp_path: Path) -> None:
    records = [
        {"timestamp": "t", "type": "session_meta", "payload": {"id": "s", "base_instructions": {"text": "Be brief."}}},
        item("message", role="user", content=[{"type": "input_text", "text": "list"}]),
        {"timestamp": "t", "type": "event_msg", "payload": {"type": "user_message", "message": "list"}},
        item(
            "reasoning", summary=[{"type": "summary_text", "text": "looking"}], content=None, encrypted_content="gAAA"
        ),
        item("message", role="assistant", content=[{"type": "output_text", "text": "I look."}]),
        {"timestamp": "t", "type": "event_msg", "payload": {"type": "agent_message", "message": "I look."}},
        item("function_call", name="shell", arguments='{"command":["ls"]}', call_id="c1"),
        item("custom_tool_call", name="apply_patch", input="*** Begin", call_id="c2", status="completed"),
        item("function_call_output", call_id="c1", output="a.py"),
        item("custom_tool_call_output", call_id="c2", output="ok"),
        item("message", role="assistant", content=[{"type": "output_text", "text": "done"}]),
    ]
    found, reading = calls(write_lines(tmp_path / "rollout.jsonl", records))
    turn = (
        'I look.\n{"name": "shell", "arguments": {"command":["ls"]}}\n{"name": "apply_patch", "arguments": *** Begin}'
    )
    assert [call.output for call in found] == [turn, "done"]
    assert found[1].messages == (
        ("system", "Be brief."), ("user", "list"), ("assistant", turn), ("tool", "a.py"), ("tool", "ok"),
    )  # fmt: skip
    assert not reading.account.unknown
    assert reading.account.left_out["output", "block reasoning without its text"].count == 1


def test_a_forked_session_of_codex_is_counted_once(tmp_path: Path) -> None:
    def message(role: str, text: str) -> dict[str, Any]:
        return item("message", role=role, content=[{"type": "output_text", "text": text}])

    def meta(identity: str) -> dict[str, Any]:
        return {"timestamp": "t", "type": "session_meta", "payload": {"id": identity}}

    turn = [
        message("user", "list"),
        message("assistant", "I look."),
        item("function_call", name="shell", arguments="{}", call_id="c1"),
        item("function_call_output", call_id="c1", output="a.py"),
        message("assistant", "done"),
    ]
    write_lines(tmp_path / "1.jsonl", [meta("1"), *turn, message("user", "more"), message("assistant", "yes")])
    # The lines of the session that was forked have new times.
    copied = [{**record, "timestamp": "2026-01-02T00:00:00Z"} for record in (meta("1"), *turn)]
    write_lines(tmp_path / "2.jsonl", [meta("2"), *copied, message("user", "less"), message("assistant", "yes")])
    # An answer of the same text to another question.
    write_lines(tmp_path / "3.jsonl", [meta("3"), message("user", "other"), message("assistant", "I look.")])
    found, reading = calls(tmp_path)
    call = '{"name": "shell", "arguments": {}}'
    assert [one.output for one in found] == [f"I look.\n{call}", "done", "yes", "yes", "I look."]
    assert found[3].messages[-3:] == (("tool", "a.py"), ("assistant", "done"), ("user", "less"))
    assert reading.account.left_out["output", "message that another file has too"].count == 2


def test_events_of_openhands(tmp_path: Path) -> None:
    message = {"role": "assistant", "content": "I look.", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "run", "arguments": '{"command": "ls"}'}},
        {"id": "2", "type": "function", "function": {"name": "run", "arguments": '{"command": "pwd"}'}}]}  # fmt: skip
    answer = {"id": "r1", "object": "chat.completion", "choices": [{"index": 0, "message": message}]}
    events: list[dict[str, Any]] = [
        {"id": 0, "source": "user", "action": "message", "args": {"content": "list"}},
        {"id": 1, "source": "environment", "action": "recall", "args": {"query": "list"}},
        *(
            {"id": 2 + i, "source": "agent", "action": "run", "args": {"command": command, "thought": "I look."},
             "tool_call_metadata": {"model_response": answer}}
            for i, command in enumerate(("ls", "pwd"))
        ),
        {"id": 4, "source": "agent", "observation": "run", "content": "a.py"},
        {"id": 5, "source": "agent", "action": "message", "args": {"content": "done"}},
    ]  # fmt: skip
    (tmp_path / "events.json").write_text(json.dumps(events))
    found, reading = calls(tmp_path)
    run = '{"name": "run", "arguments": {"command": "%s"}}'
    assert [call.output for call in found] == [f"I look.\n{run % 'ls'}\n{run % 'pwd'}", "done"]
    assert found[1].messages[-1] == ("tool", "a.py")
    assert reading.account.left_out["output", "answer of which only the action was recorded"].count == 1


def test_events_of_the_openhands_sdk(tmp_path: Path) -> None:
    def action(identity: str, command: str, **fields: Any) -> dict[str, Any]:
        call = {"id": identity, "name": "bash", "arguments": json.dumps({"command": command}), "origin": "completion"}
        return {"kind": "ActionEvent", "source": "agent", "id": identity, "llm_response_id": "r1", "tool_call": call,
                "tool_name": "bash", "tool_call_id": identity, "action": {"command": command}, **fields}  # fmt: skip

    events = [
        {"kind": "SystemPromptEvent", "source": "agent", "id": "0", "system_prompt": {"type": "text", "text": "Be brief."}},
        {"kind": "MessageEvent", "source": "user", "id": "1", "llm_message": {
            "role": "user", "content": [{"type": "text", "text": "list"}]}},
        action("2", "ls", thought=[{"type": "text", "text": "I look."}], reasoning_content="Hm."),
        action("3", "pwd", thought=[]),
        {"kind": "ObservationEvent", "source": "environment", "id": "4", "tool_name": "bash", "action_id": "2",
         "observation": {"kind": "x", "content": [{"type": "text", "text": "a.py"}]}},
        {"kind": "MessageEvent", "source": "agent", "id": "5", "llm_message": {
            "role": "assistant", "content": [{"type": "text", "text": "done"}]}},
    ]  # fmt: skip
    found, reading = calls(write_lines(tmp_path / "events.jsonl", events))
    call = '{"name": "bash", "arguments": {"command": "%s"}}'
    assert [one.output for one in found] == [f"Hm.\nI look.\n{call % 'ls'}\n{call % 'pwd'}", "done"]
    assert found[0].messages == (("system", "Be brief."), ("user", "list"))
    assert not reading.account.unknown


def test_streams_are_put_together(tmp_path: Path) -> None:
    def chunk(stream: str, text: str) -> dict[str, Any]:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        return {"id": stream, "object": "chat.completion.chunk", "choices": [choice]}

    chunks = [chunk("a", "no"), chunk("b", "on"), chunk("a", "on"), chunk("b", "e")]
    found, _ = calls(write_lines(tmp_path / "chunks.jsonl", chunks))
    assert [call.output for call in found] == ["noon", "one"]
    text = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"
    (tmp_path / "stream.txt").write_text(text)
    found, reading = calls(tmp_path / "stream.txt")
    assert [call.output for call in found] == ["noon", "one"] and reading.formats == {"stream": 2}


def test_streams_of_ollama_end_where_they_are_done(tmp_path: Path) -> None:
    def part(text: str, done: bool = False) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        return {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": done}

    parts = [part("no"), part("on"), part("", True), part("one", True)]
    found, _ = calls(write_lines(tmp_path / "stream.jsonl", parts))
    assert [call.output for call in found] == ["noon", "one"] and found[0].labels.session != found[1].labels.session


def test_what_a_tool_answered_is_no_output_in_old_sessions_of_codex(tmp_path: Path) -> None:
    lines = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list"}]},
        {"record_type": "state"},
        {"type": "function_call", "id": "f", "name": "shell", "arguments": "{}", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": "a.py"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
    ]
    found, reading = calls(write_lines(tmp_path / "session.jsonl", lines))
    assert [call.output for call in found] == ['{"name": "shell", "arguments": {}}', "done"]
    assert found[1].messages[-1] == ("tool", "a.py") and found[0].labels.role == ""
    assert reading.num_bad == 0 and not reading.account.unknown


def test_a_malformed_session_costs_only_itself(tmp_path: Path) -> None:
    def item(session: str, content: Any, role: str = "assistant") -> dict[str, Any]:
        return {"session": session, "role": role, "content": content}

    lines = [item("a", {"odd": 1}), item("b", 7), item("c", 7, "tool"), item("c", "noon")]
    found, reading = calls(write_lines(tmp_path / "messages.jsonl", lines))
    assert [(call.messages, call.output) for call in found] == [((("tool", "7"),), "noon")] and reading.num_bad == 2
