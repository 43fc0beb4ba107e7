"""Chat messages as text, in the form that agentspec.analysis.replay.traces uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentspec.analysis.logs.calls import BadRecordError, Labels, LoggedCall, shown, time_of
from agentspec.analysis.replay.traces import message_text

ASSISTANT_HEADER = "<|assistant|>\n"
_ASSISTANTS = ("assistant", "ai", "model", "gpt")


def as_messages(values: Any) -> list[tuple[str, str]]:
    """(role, text) of chat messages or of items of OpenAI's Responses API. The items of one turn of the model become
    one message. Raises BadRecordError if `values` is neither."""
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise BadRecordError("messages must be a list of objects")
    if not any(map(is_item, values)):
        return [_message(value) for value in values]
    messages: list[tuple[str, str]] = []
    for value in values:
        role, text = _item(value) if is_item(value) else _message(value)
        if role == "assistant" and messages and messages[-1][0] == "assistant":
            text = "\n".join(filter(None, (messages.pop()[1], text)))
        messages.append((role, text))
    return messages


def is_item(value: Mapping[str, Any]) -> bool:
    """Whether a value is an item or a response of the Responses API, and not a message with a role."""
    return "role" not in value and (isinstance(value.get("type"), str) or isinstance(value.get("output"), list))


def output_text(message: Any) -> str:
    """The text of an answer: a string, a message with reasoning, content and tool calls, or a response of items. Raises
    BadRecordError for anything else."""
    if isinstance(message, str):
        return message
    if not isinstance(message, dict):
        raise BadRecordError("an answer must be text or a message")
    if is_item(message):
        return _item(message)[1]
    return "\n".join(filter(None, (_reasoning(message), message_text(message))))


def chat_calls(
    messages: Sequence[tuple[str, str]],
    labels: Labels,
    skipped: Sequence[int] = (),
    agents: Sequence[str] = (),
    values: Sequence[Any] = (),
) -> Iterator[LoggedCall]:
    """Each assistant message as the output of a call whose prompt is the messages before it.

    Args:
        messages: (role, text).
        labels: The labels of all calls.
        skipped: Indexes of messages that no model wrote, such as demonstrations.
        agents: The name of each message's agent, which becomes the role of its call.
        values: The messages as recorded. An output is then everything that the model wrote, reasoning included,
            although later prompts may omit a part of it.
    """
    position = 0
    for i, (role, text) in enumerate(messages):
        if role == "assistant" and i not in skipped:
            named = replace(labels, role=shown(agents[i])) if agents and agents[i] else labels
            value = values[i] if values else None
            output = text if value is None else output_text(value)
            yield LoggedCall(
                tuple(messages[:i]),
                ASSISTANT_HEADER,
                output,
                named,
                position,
                message=value,
                prompt_values=values[:i],
                began=time_of(values[i - 1]) if values and i else None,
                ended=None if value is None else time_of(value),
            )
            position += 1


def _reasoning(message: Mapping[str, Any]) -> str:
    """The text that a model wrote before its answer, which most logs keep in a field of its own."""
    for field in ("reasoning_content", "reasoning"):
        found = message.get(field)
        if isinstance(found, str):
            return found
    blocks = message.get("thinking_blocks")
    thoughts = (
        [block.get("thinking") for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    )
    return "\n".join(thought for thought in thoughts if isinstance(thought, str))


def _item(value: Mapping[str, Any]) -> tuple[str, str]:
    items = value.get("output")
    if isinstance(items, list) and value.get("type") != "function_call_output":
        if not all(isinstance(item, dict) for item in items):
            raise BadRecordError("a response's output must be a list of objects")
        parts = [_item(item)[1] if is_item(item) else message_text(item) for item in items]
        return "assistant", "\n".join(filter(None, parts))
    kind = value.get("type")
    if kind == "function_call":
        return "assistant", message_text({"tool_calls": [dict(value)]})
    if kind == "reasoning":
        return "assistant", message_text({"content": value.get("content")})
    if kind == "function_call_output":
        return "tool", message_text({"content": items})
    if kind == "message":
        return "assistant", message_text({"content": value.get("content")})
    raise BadRecordError("a message has no role")


def _message(value: Mapping[str, Any]) -> tuple[str, str]:
    role = value.get("role")
    if not isinstance(role, str):
        raise BadRecordError("a message has no role")
    return ("assistant" if role in _ASSISTANTS else role), message_text(dict(value))
