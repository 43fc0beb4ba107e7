"""Events of OpenHands, of its servers and of its SDK, as messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentspec.analysis.logs.account import Account
from agentspec.analysis.logs.formats import fields
from agentspec.analysis.logs.formats.answers import read_answers
from agentspec.analysis.logs.formats.blocks import Part, call_text
from agentspec.analysis.logs.formats.messages import Message, read_message

_EVENT_KINDS = fields.names(
    """
    ActionEvent MessageEvent ObservationEvent SystemPromptEvent AgentErrorEvent UserRejectObservation PauseEvent
    ConversationStateUpdateEvent Condensation CondensationRequest CondensationSummaryEvent TokenEvent
    ConversationErrorEvent LLMCompletionLogEvent
    """
)


_EVENT_KNOWN = fields.names(
    """
    id timestamp source message action observation args content extras cause tool_call_metadata llm_metrics timeout
    tool_result success kind thought reasoning_content thinking_blocks responses_reasoning_item tool_name tool_call_id
    tool_call llm_response_id security_risk summary llm_message activated_skills extended_content system_prompt tools
    action_id error response_id file_store stats critic_result sender activated_microagents dynamic_context hidden
    """
)


# What an agent does on its own account, without a model.
_EVENT_IGNORED = fields.names(
    "recall change_agent_state null condensation condensation_request pause resume loop_recovery"
)


_EVENT_ARGUMENTS_IGNORED = fields.names(
    """
    thought hidden confirmation_state security_risk wait_for_response image_urls file_urls blocking is_input is_static
    keep_prompt kernel_init_code include_extra impl_source task_completed cwd outputs
    """
)


def is_event(record: Mapping[str, Any]) -> bool:
    """Whether a record is an event of OpenHands."""
    if isinstance(record.get("kind"), str) and record["kind"] in _EVENT_KINDS:
        return True
    return "source" in record and ("action" in record or "observation" in record)


def event_messages(events: list[Any], account: Account) -> list[Message]:
    """The messages that events of OpenHands tell of."""
    messages: list[Message] = []
    places: dict[str, int] = {}
    if all(isinstance(event, dict) and isinstance(event.get("id"), int) for event in events):
        # Files are read in the order of their names, in which 10 comes before 2.
        events = sorted(events, key=lambda event: int(event["id"]))
    for event in events:
        if not isinstance(event, dict):
            account.note_unknown("record", "openhands-events element that is no object", event)
            continue
        account.check("record", "openhands-events", event, _EVENT_KNOWN)
        made, identity = _event_message(event, account)
        if made is None:
            continue
        if identity and identity in places:
            # Several actions of one answer; what they share is there once.
            before = messages[places[identity]]
            new = tuple(part for part in made.parts if part not in before.parts)
            messages[places[identity]] = Message(before.role, before.parts + new, before.value)
            continue
        if identity:
            places[identity] = len(messages)
        messages.append(made)
    return messages


def _event_message(event: Mapping[str, Any], account: Account) -> tuple[Message | None, str]:
    """The message of an event, and the identity of the answer that it is a part of."""
    if event.get("kind") in _EVENT_KINDS:
        return _sdk_message(event, account)
    metadata = event.get("tool_call_metadata")
    response = metadata.get("model_response") if isinstance(metadata, dict) else None
    if event.get("source") == "agent" and isinstance(response, dict):
        answers = read_answers(response, account)
        return (answers[0].message if answers else None), str(response.get("id") or "")
    arguments = event.get("args") if isinstance(event.get("args"), dict) else {}
    assert isinstance(arguments, dict)
    action = event.get("action")
    if action is None:
        content = event.get("content")
        return (_text("tool", content, account) if isinstance(content, str) else None), ""
    if action in _EVENT_IGNORED or event.get("source") == "environment":
        return None, ""
    if action == "system" or event.get("source") != "agent":
        content = arguments.get("content", event.get("message"))
        role = "system" if action == "system" else "user"
        return (_text(role, content, account) if isinstance(content, str) else None), ""
    # The model's answer is not there, so its text is made of the fields of what it led to.
    account.note_left_out("output", "answer of which only the action was recorded")
    parts = [Part("text", arguments["thought"])] if isinstance(arguments.get("thought"), str) else []
    if action in ("message", "finish", "reject"):
        texts = (arguments.get("content"), arguments.get("final_thought"))
        parts += [Part("text", text) for text in texts if isinstance(text, str)]
    else:
        chosen = {key: value for key, value in arguments.items() if key not in _EVENT_ARGUMENTS_IGNORED and value}
        parts.append(Part("call", call_text(str(action), chosen)))
    parts = [part for part in parts if part.text]
    account.note_read("output", sum(len(part.text) for part in parts))
    return Message("assistant", tuple(parts)), ""


def _sdk_message(event: Mapping[str, Any], account: Account) -> tuple[Message | None, str]:
    kind = event["kind"]
    if kind == "MessageEvent" and isinstance(event.get("llm_message"), dict):
        is_model = event["llm_message"].get("role") == "assistant"
        return read_message(event["llm_message"], account, "output" if is_model else "prompt"), ""
    if kind == "ActionEvent":
        fields_of = ("thinking_blocks", "reasoning_content")
        message = {"role": "assistant", "content": event.get("thought"), **{f: event.get(f) for f in fields_of}}
        if isinstance(event.get("tool_call"), dict):
            call = event["tool_call"]
            message["tool_calls"] = [{key: call[key] for key in ("id", "function", "name", "arguments") if key in call}]
        return read_message(message, account, "output"), str(event.get("llm_response_id") or "")
    if kind == "SystemPromptEvent":
        return read_message({"role": "system", "content": event.get("system_prompt")}, account, "prompt"), ""
    if kind in ("ObservationEvent", "AgentErrorEvent"):
        found = event.get("observation", event.get("error"))
        content = found.get("content", found) if isinstance(found, dict) else found
        return read_message({"role": "tool", "content": content}, account, "prompt"), ""
    return None, ""


def _text(role: str, text: str, account: Account) -> Message:
    return read_message({"role": role, "content": text}, account, "prompt")
