"""How the launcher turns requests into replayed ones, tested without a server."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.integrations.sglang.replay import hooks as replay_hooks
from agentspec.integrations.sglang.replay.front import ReplayFront, end_token
from agentspec.integrations.sglang.replay.recorded_answers import with_tool_calls
from agentspec.integrations.sglang.replay.wire import WIRE_KEY, ForcedAnswer, unpacked

END = 256
CHAT = [{"role": "system", "content": "rules"}, {"role": "user", "content": "question"}]


class _Bytes:
    """A tokenizer whose tokens are bytes, with a chat template."""

    eos_token_id = END
    bos_token = None
    chat_template = "yes"

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int], **kwargs: Any) -> str:
        return "".join("$" if i == END else chr(i) for i in ids)

    def apply_chat_template(self, chat: list[dict[str, str]], **kwargs: Any) -> str:
        return "".join(f"[{m['role']}]{m['content']}" for m in chat) + "[assistant]"


def _front(replay: str, unmatched: str = "refuse", tokenizer: Any = None) -> ReplayFront:
    return ReplayFront(replay, unmatched, tokenizer or _Bytes(), END, 300)


def _trace(folder: Path, answers: tuple[str, ...] = ("first", "second")) -> str:
    path = folder / "trace.jsonl"
    path.write_text(
        "".join(json.dumps({"messages": [*CHAT, {"role": "assistant", "content": a}]}) + "\n" for a in answers)
    )
    return str(path)


def _request(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"rid": "r", "sampling_params": {"temperature": 0}, **fields})


def _answer(obj: SimpleNamespace) -> ForcedAnswer | None:
    return unpacked(obj.sampling_params["custom_params"])


def _chat(front: ReplayFront, messages: list[dict[str, Any]]) -> SimpleNamespace:
    """Passes a chat request through the launcher's part."""
    sampling: dict[str, Any] = {"temperature": 0}
    front.match_chat(sampling, messages)
    obj = _request(text="rendered", sampling_params=sampling)
    front.before_validation(obj, [1], False)
    return obj


def test_chats_get_their_answers_in_the_order_of_the_file(tmp_path: Path) -> None:
    front = _front(_trace(tmp_path))
    for text in ("first", "second", "first"):
        obj = _chat(front, CHAT)
        assert _answer(obj) == ForcedAnswer(tuple(text.encode()), END)
        # The value is sent to another process.
        assert type(obj.sampling_params["custom_params"][WIRE_KEY]) is list
    assert front.describe()["requests"]["matched"] == 3


@pytest.mark.parametrize(
    "prompt",
    [
        {"text": "<|system|>\nrules$<|user|>\nquestion$<|assistant|>\n"},
        {"input_ids": list(b"[system]rules[user]question[assistant]")},
    ],
    ids=["as agentspec.analysis.replay writes it", "as the template does"],
)
def test_rendered_prompts_are_matched_too(tmp_path: Path, prompt: dict[str, Any]) -> None:
    obj = _request(**prompt)
    _front(_trace(tmp_path)).before_validation(obj, prompt.get("input_ids", [1]), False)
    assert _answer(obj) == ForcedAnswer(tuple(b"first"), END)


def test_unmatched_chats_are_refused_with_where_they_differ_or_counted(tmp_path: Path) -> None:
    other = [CHAT[0], {"role": "user", "content": "secret"}]
    front = _front(_trace(tmp_path))
    with pytest.raises(ValueError, match="first 1 of its 2 messages") as refused:
        _chat(front, other)
    assert "secret" not in str(refused.value)
    assert front.describe()["unmatched"] == 1
    free = _front(_trace(tmp_path), "free")
    assert _answer(_chat(free, other)) is None
    marks: list[dict[str, Any]] = [{"id": "r"}, {"id": "another"}]
    for mark in marks:
        free.mark(mark)
    assert [mark["agentspec_replay"] for mark in marks] == ["free", "forced"]
    assert free.describe()["requests"]["free"] == 1


def test_what_the_server_asks_itself_passes(tmp_path: Path) -> None:
    front = _front(_trace(tmp_path))
    front.before_validation(_request(text="hello"), [1], True)
    front.before_validation(_request(text=None, rid="HEALTH_CHECK_1"), [0], False)
    assert front.describe()["requests"]["warm_up"] == 2


@pytest.mark.parametrize(
    ("carried", "tokens", "limit"),
    [
        ({"text": "hi"}, b"hi", None),
        ({"ids": [7, 8]}, (7, 8), None),
        ({"ids": [7, 8], "finish": "length"}, (7, 8), 2),
        ({"ids": []}, (), None),
    ],
)
def test_requests_bring_their_answers(carried: dict[str, Any], tokens: Any, limit: int | None) -> None:
    front = _front("requests")
    custom = {"agentspec": {"replay": carried, "no_store": True}, "other": 1}
    obj = _request(text="x", sampling_params={"custom_params": custom})
    front.before_validation(obj, [1], False)
    assert _answer(obj) == ForcedAnswer(tuple(tokens), END)
    assert obj.sampling_params.get("max_new_tokens") == limit
    assert obj.sampling_params["custom_params"]["agentspec"] == {"no_store": True}
    # The client's own object is not modified.
    assert custom["agentspec"]["replay"] == carried  # type: ignore[index]


@pytest.mark.parametrize(
    ("carried", "told"),
    [
        ({"ids": [300]}, r"\[0, 300\)"),
        ({"ids": ["7"]}, "whole numbers"),
        ({"text": "a", "ids": [1]}, "either text or ids"),
        ({"text": 5}, "must be a string"),
        ({"text": "a", "finish": "soon"}, "stop or length"),
        ({"text": "a", "more": 1}, "more is unknown"),
        ("text", "either text or ids"),
    ],
)
def test_answers_that_are_none_are_refused(carried: Any, told: str) -> None:
    obj = _request(text="x", sampling_params={"custom_params": {"agentspec": {"replay": carried}}})
    with pytest.raises(ValueError, match=told):
        _front("requests").before_validation(obj, [1], False)


@pytest.mark.parametrize("prompt", [[1, 300], [-1, 5]])
def test_prompts_of_another_vocabulary_are_refused(prompt: list[int]) -> None:
    obj = _request(text=None, sampling_params={"custom_params": {"agentspec": {"replay": {"text": "a"}}}})
    with pytest.raises(ValueError, match=rf"\[0, 300\), got {prompt[0] if prompt[0] < 0 else prompt[1]}"):
        _front("requests").before_validation(obj, prompt, False)


def test_answers_are_taken_in_one_mode_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def obj(**custom: Any) -> SimpleNamespace:
        return _request(text="x", sampling_params={"custom_params": custom})

    carried = {"replay": {"text": "a"}}
    with pytest.raises(ValueError, match="AGENTSPEC_REPLAY=requests; this one replays files"):
        _front(_trace(tmp_path)).before_validation(obj(agentspec=carried), [1], False)
    with pytest.raises(ValueError, match="set custom_params.agentspec.replay"):
        _front("requests").before_validation(obj(), [1], False)
    with pytest.raises(ValueError, match="set by the server alone"):
        _front("requests").before_validation(obj(**{WIRE_KEY: [1, 2]}), [1], False)
    monkeypatch.setattr(replay_hooks, "_front", None)
    with pytest.raises(ValueError, match="this one answers by itself"):
        replay_hooks.before_validation(None, obj(agentspec=carried), [1])
    replay_hooks.before_validation(None, obj(agentspec={"no_store": True}), [1])


class _ToolCalls(_Bytes):
    """A tokenizer whose template writes tool calls."""

    eos_token = "$"

    def apply_chat_template(self, chat: list[dict[str, Any]], **kwargs: Any) -> str:
        text = ""
        for message in chat:
            calls = [call["function"] for call in message.get("tool_calls", [])]
            text += f"[{message['role']}]{message['content']}" + "".join(
                f"<{c['name']}:{c['arguments']['x']}>" for c in calls
            )
            text += "$"
        return text + ("[assistant]" if kwargs.get("add_generation_prompt") else "")


def test_tool_calls_are_written_as_the_served_model_writes_them(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"x": 5}'}}
    message = {"role": "assistant", "content": "so", "tool_calls": [call]}
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps({"messages": [*CHAT, message]}) + "\n")
    answer = _answer(_chat(_front(str(path), tokenizer=_ToolCalls()), CHAT))
    assert answer is not None and bytes(answer.tokens) == b"so<add:5>"
    # This template does not support tool calls.
    assert with_tool_calls(_Bytes(), message) is None
    plain = _answer(_chat(_front(str(path)), CHAT))
    assert plain is not None and bytes(plain.tokens) == b'so\n{"name": "add", "arguments": {"x": 5}}'


def test_a_source_without_answers_or_an_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "hello"}]}\n{"neither": 1}\n')
    with pytest.raises(ConfigError, match="no recorded answer"):
        _front(str(path))
    assert end_token(SimpleNamespace(eos_token_id=None), {9, 4}) == 4
    with pytest.raises(ConfigError, match="end-of-sequence"):
        ReplayFront("requests", "refuse", _Bytes(), end_token(None, None), 300)
