"""Chat messages, items of the Responses API and content blocks as text.

A message is a sequence of parts of known kinds. What a model wrote are its reasoning, its text and its calls of tools,
each on lines of its own. A later prompt repeats the text and the calls. It also has what tools answered, which no model
wrote, even where a log keeps it in the same message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentspec.analysis.logs.account import Account, Where
from agentspec.analysis.logs.calls import BadRecordError, Labels, LoggedCall, from_text, shown, time_of
from agentspec.analysis.logs.formats import fields
from agentspec.analysis.logs.formats.blocks import Part, block_parts, call_text, content_parts, is_redacted, merged

ASSISTANT_HEADER = "<|assistant|>\n"
REDACTED = "text that the log has redacted"


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was read."""

    role: str
    parts: tuple[Part, ...]
    value: Mapping[str, Any] | None = None
    """The message as recorded, if it is one object of the log."""
    place: int = 0
    """The index of its last value in the list that it was read from."""

    @property
    def written(self) -> str:
        """Everything that the model wrote."""
        return "\n".join(part.text for part in self.parts if part.kind != "result")

    @property
    def read(self) -> str:
        """The message as a later prompt has it."""
        return "\n".join(part.text for part in self.parts if part.kind != "reasoning")

    @property
    def pair(self) -> tuple[str, str]:
        return self.role, self.read


def as_messages(values: Any) -> list[tuple[str, str]]:
    """(role, text) of chat messages or of items of OpenAI's Responses API, see read_messages()."""
    return [message.pair for message in read_messages(values, Account())]


def read_messages(values: Any, account: Account, *, prompt: bool = True) -> list[Message]:
    """The messages of a list of chat messages or of items of OpenAI's Responses API, those of one turn of the model as
    one. With `prompt`, the assistant's messages are of a prompt too, otherwise outputs. Raises ValueError if
    `values` is neither."""
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise BadRecordError("messages must be a list of objects")
    values = [_plain(value) for value in values]
    are_items = any(map(is_item, values))
    messages: list[Message] = []
    for place, value in enumerate(values):
        item = is_item(value)
        role = _item_role(value) if item else role_of(value)
        where: Where = "output" if role == "assistant" and not prompt else "prompt"
        message = read_item(value, account, where) if item else read_message(value, account, where)
        if are_items and message.role == "assistant" and messages and messages[-1].role == "assistant":
            before = messages.pop()
            message = Message("assistant", before.parts + message.parts)
        messages.append(replace(message, place=place))
    return messages


def role_of(value: Mapping[str, Any]) -> str:
    """The role of a message by its usual name. Raises BadRecordError if it has none."""
    for field in ("role", "from"):
        role = value.get(field)
        if isinstance(role, str):
            return fields.ROLES.get(role, role)
    kind = value.get("type")
    if isinstance(kind, str) and kind in fields.KNOWN_ROLES:
        return fields.ROLES.get(kind, kind)
    raise BadRecordError("a message has no role")


def is_item(value: Mapping[str, Any]) -> bool:
    """Whether a value is an item or a response of the Responses API, and not a message with a role."""
    if "role" in value or "from" in value:
        return False
    if isinstance(value.get("output"), list):
        return True
    kind = value.get("type")
    # A message of LangChain has its role in the type.
    return isinstance(kind, str) and (
        kind not in fields.KNOWN_ROLES or kind in fields.BLOCKS and "content" not in value
    )


def is_known_item(value: Mapping[str, Any]) -> bool:
    """Whether a value is an item of a known type, or a response."""
    return is_item(value) and (isinstance(value.get("output"), list) or value.get("type") in fields.BLOCKS)


def is_message(value: Any) -> bool:
    """Whether a value looks like a message or an item, so that it is one even if it was stored as a string."""
    if not isinstance(value, dict):
        return False
    value = _plain(value)
    role = value.get("role", value.get("from"))
    if isinstance(role, str):
        return role in fields.KNOWN_ROLES and any(
            field in value for field in (*fields.MESSAGE_TEXT, *fields.MESSAGE_CALLS)
        )
    kind = value.get("type")
    return isinstance(kind, str) and (
        kind in fields.BLOCKS or kind in fields.KNOWN_ROLES and ("content" in value or "data" in value)
    )


def read_message(value: Mapping[str, Any], account: Account, where: Where) -> Message:
    """A chat message. What is not known in it is noted."""
    value = _plain(value)
    role = role_of(value)
    place = next((field for field in fields.MESSAGE_TEXT if value.get(field)), None)
    content = None if place is None else value[place]
    parts = list(content_parts(content, account, where))
    if isinstance(value.get("refusal"), str) and value["refusal"]:
        parts.append(Part("text", value["refusal"]))
    nested = [value[field] for field in fields.MESSAGE_NESTED if isinstance(value.get(field), dict)]
    parts = [*_reasoning(value, nested, parts, account, where), *parts]
    parts += _calls(value, nested, parts, account, where)
    text = "\n".join(part.text for part in parts)
    account.note_read(where, sum(len(part.text) for part in parts))
    if isinstance(content, str):
        text += content
    _check_message(value, nested, account, where, text)
    if role != "assistant" and parts and all(part.kind == "result" for part in parts):
        role = "tool"
    return Message(role, tuple(_without_redacted(parts, account, where)), value)


def read_item(value: Mapping[str, Any], account: Account, where: Where) -> Message:
    """An item of the Responses API, or a whole response."""
    items = value.get("output")
    if isinstance(items, list) and value.get("type") not in fields.BLOCKS:
        if not all(isinstance(item, dict) for item in items):
            raise BadRecordError("a response's output must be a list of objects")
        account.check(where, "response", value, _RESPONSE_KNOWN)
        return Message("assistant", tuple(part for item in items for part in read_item(item, account, where).parts))
    parts = list(merged(block_parts(value, account, where)))
    account.note_read(where, sum(len(part.text) for part in parts))
    return Message(_item_role(value), tuple(parts))


def chat_calls(
    messages: Sequence[Message], labels: Labels, account: Account, skipped: Iterable[int] = ()
) -> Iterator[LoggedCall]:
    """Each assistant message as the output of a call whose prompt is the messages before it. An output is everything
    that the model wrote, reasoning included, although later prompts may omit a part of it. An agent that a message
    names becomes the role of its call. Messages at the indexes of `skipped` are no outputs, such as demonstrations
    and those that were counted before."""
    skipped = set(skipped)
    pairs = [message.pair for message in messages]
    values = [message.value or {} for message in messages]
    are_chat = all(map(is_openai, values))
    for i, message in enumerate(messages):
        if message.role != "assistant" or i in skipped:
            continue
        if not message.written:
            account.note_left_out("output", "message without text")
            continue
        agent = str(values[i].get("name") or values[i].get("agent") or "")
        yield LoggedCall(
            tuple(pairs[:i]),
            ASSISTANT_HEADER,
            message.written,
            replace(labels, role=shown(agent)) if agent else labels,
            message=message.value,
            prompt_values=values[:i] if are_chat else (),
            began=time_of(values[i - 1]) if i else None,
            ended=time_of(values[i]),
        )


_RESPONSE_KNOWN = fields.ANSWER_IGNORED | {"output", "output_text", "text", "extra", "reasoning"}


def _item_role(value: Mapping[str, Any]) -> str:
    kind = value.get("type")
    if kind == "message" and isinstance(value.get("role"), str):
        return role_of(value)
    row = fields.BLOCKS.get(kind) if isinstance(kind, str) else None
    return "tool" if row is not None and row.kind == "result" else "assistant"


def _plain(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message itself, unwrapped from the forms in which LangChain stores it."""
    if value.get("lc") is not None and isinstance(value.get("kwargs"), dict):
        identity = value.get("id")
        kind = identity[-1] if isinstance(identity, list) and identity else None
        return {"type": kind, **value["kwargs"]}
    if isinstance(value.get("data"), dict) and value.get("type") in fields.KNOWN_ROLES and "content" in value["data"]:
        return {"type": value["type"], **value["data"]}
    # Attributes of OpenInference name each message twice.
    if isinstance(value.get("message"), dict) and isinstance(value["message"].get("role"), str) and len(value) == 1:
        return dict(value["message"])
    return value


def _reasoning(
    value: Mapping[str, Any], nested: Sequence[Mapping[str, Any]], parts: Sequence[Part], account: Account, where: Where
) -> list[Part]:
    """The reasoning in a field of its own, unless the content has it too."""
    known = "\n".join(part.text for part in parts if part.kind == "reasoning")
    for place in (value, *nested):
        for field in fields.MESSAGE_REASONING:
            found = place.get(field)
            if not isinstance(found, str | list) or not found:
                continue
            text = found if isinstance(found, str) else "\n".join(
                part.text for block in found for part in block_parts(block, account, where)
            )  # fmt: skip
            return [Part("reasoning", text)] if text and text not in known else []
    return []


def _calls(
    value: Mapping[str, Any], nested: Sequence[Mapping[str, Any]], parts: Sequence[Part], account: Account, where: Where
) -> list[Part]:
    """The calls in fields of their own, without those that the content has too."""
    known = {_canonical(part.text) for part in parts if part.kind == "call"}
    for place in (value, *nested):
        found: list[Part] = []
        for field in fields.MESSAGE_CALLS:
            calls = from_text(place.get(field)) or []
            for call in calls if isinstance(calls, list) else [calls]:
                found += _call_part(call, account, where)
        if found:
            return [part for part in found if not known or _canonical(part.text) not in known]
    return []


def _canonical(call: str) -> str:
    """The same text for calls that differ in white space alone."""
    try:
        return json.dumps(json.loads(call), sort_keys=True)
    except (ValueError, RecursionError):
        return call


def _call_part(call: Any, account: Account, where: Where) -> list[Part]:
    call = from_text(call)
    inner = call
    if isinstance(call, dict):
        account.check(where, "tool call", call, fields.TOOL_CALL_KNOWN)
        inner = next((call[field] for field in ("function", "custom") if isinstance(call.get(field), dict)), call)
    if isinstance(inner, dict):
        name = next((inner[key] for key in ("name", "toolName", "function") if isinstance(inner.get(key), str)), None)
        keys = ("arguments", "args", "input", "parameters")
        arguments: Any = next((inner[key] for key in keys if inner.get(key) is not None), {})
        if name is not None:
            return [Part("call", call_text(name, arguments))]
    account.note_unknown(where, "tool call without a name", call)
    return []


def _check_message(
    value: Mapping[str, Any], nested: Sequence[Mapping[str, Any]], account: Account, where: Where, text: str
) -> None:
    account.check(where, "message", value, fields.MESSAGE_KNOWN, text)
    for inner in nested:
        account.check(where, "message", inner, fields.NESTED_KNOWN, text)
    for field in (*fields.MESSAGE_TEXT, *fields.MESSAGE_REASONING):
        if isinstance(value.get(field), str) and value[field] not in text:
            account.note_unknown(where, f"message.{field} beside another text", value[field], text)
    for field in fields.MESSAGE_LEFT_OUT & value.keys():
        if value[field]:
            account.note_left_out(where, f"message.{field}", value[field])


def _without_redacted(parts: Sequence[Part], account: Account, where: Where) -> Iterator[Part]:
    for part in parts:
        if part.kind == "text" and is_redacted(part.text):
            account.note_left_out(where, REDACTED)
        elif part.text:
            yield part


def is_openai(value: Mapping[str, Any]) -> bool:
    """Whether a message can be sent to a server of OpenAI's API as it is."""
    content = value.get("content")
    plain = ("text", "image_url", "input_audio")
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return False
    return isinstance(value.get("role"), str) and (
        content is None
        or isinstance(content, str)
        or isinstance(content, list)
        and all(isinstance(block, dict) and block.get("type") in plain for block in content)
    )
