"""Chat messages as text, in the form that agentspec.replay.traces gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentspec.replay.traces import message_text
from agentspec.report.calls import BadRecordError, Labels, LoggedCall, shown

ASSISTANT_HEADER = "<|assistant|>\n"
_ASSISTANTS = ("assistant", "ai", "model", "gpt")


def as_messages(values: Any) -> list[tuple[str, str]]:
    """(role, text) of a list of chat messages; raises BadRecordError if it is none."""
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise BadRecordError("messages must be a list of objects")
    return [_message(value) for value in values]


def output_text(message: Any) -> str:
    """The text of an answer, a string or a message with content and tool calls; raises BadRecordError if it is neither."""
    if isinstance(message, str):
        return message
    if not isinstance(message, dict):
        raise BadRecordError("an answer must be text or a message")
    return message_text(message)


def chat_calls(
    messages: Sequence[tuple[str, str]],
    labels: Labels,
    skipped: Sequence[int] = (),
    agents: Sequence[str] = (),
    values: Sequence[Any] = (),
) -> Iterator[LoggedCall]:
    """Each assistant message as the output of a call whose prompt is all before it.

    Args:
        messages: (role, text).
        labels: Of all calls.
        skipped: Indexes of messages that no model wrote, such as demonstrations.
        agents: The name of each message's agent, which is then its calls' role.
        values: The messages as they were recorded.
    """
    position = 0
    for i, (role, text) in enumerate(messages):
        if role == "assistant" and i not in skipped:
            named = replace(labels, role=shown(agents[i])) if agents and agents[i] else labels
            value = values[i] if values else None
            yield LoggedCall(tuple(messages[:i]), ASSISTANT_HEADER, text, named, position, message=value)
            position += 1


def _message(value: Mapping[str, Any]) -> tuple[str, str]:
    role = value.get("role")
    if not isinstance(role, str):
        raise BadRecordError("a message has no role")
    return ("assistant" if role in _ASSISTANTS else role), message_text(dict(value))
