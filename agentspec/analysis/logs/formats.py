"""Formats of recorded calls, recognized by the fields of a record.

openai      {"messages", "completion" | "response" | "choices"}, {"request", "response"}, {"prompt", "completion"}
            or of the Responses API, {"input", "response": {"output"}}
openhands   the same with "args" or "cost", one file per call, in a folder named llm_completions
sharegpt    {"conversations": [{"from", "value"}, ...], "system"?}
swe-agent   {"history" | "trajectory", "info"}, or several of them as {"attempts"}
mini-swe-agent  {"messages", "info" | "trajectory_format"}
chat        {"messages"}: each assistant message is an output
staged      {"calls": [{"stage", "output", "messages"?}, ...]}
tokens      {"tokens", "num_prompt_tail"?}, as `agentspec store export` writes
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentspec.analysis.logs.calls import BadRecordError, Labels, LoggedCall, labels_of, shown, time_of
from agentspec.analysis.logs.message_text import ASSISTANT_HEADER, as_messages, chat_calls, output_text

_ANSWERS = ("completion", "response", "output", "choices")
# The text that a model wrote, where its answer was converted to function calls that the model has no format for.
_RAW_ANSWER = "raw_response"
_SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "bing": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "function_call": "assistant",
    "function-call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "function_response": "tool",
    "function-response": "tool",
    "tool_response": "tool",
}
_SAMPLED_MESSAGES = 2
"""The number of first messages that identify a conversation without a name."""


def format_of(record: Any) -> str:
    """The format of a record; raises BadRecordError if none fits."""
    if not isinstance(record, dict):
        raise BadRecordError(f"a record must be an object, got {type(record).__name__}")
    has = record.keys()
    if "conversations" in has:
        return "sharegpt"
    if "messages" in has:
        if any(record.get(key) is not None for key in _ANSWERS):
            return "openhands" if "args" in has or "cost" in has else "openai"
        return "mini-swe-agent" if "trajectory_format" in has or isinstance(record.get("info"), dict) else "chat"
    if has & {"history", "trajectory", "attempts"}:
        return "swe-agent"
    if "calls" in has:
        return "staged"
    if "tokens" in has:
        return "tokens"
    if has & {"request", "prompt", "input", "response", "choices"}:
        return "openai"
    raise BadRecordError(
        f"no known format matches a record with the fields {', '.join(sorted(map(shown, list(has)[:6]))) or '(none)'}"
    )


def calls_of(record: Any, fallback_session: str) -> tuple[str, list[LoggedCall]]:
    """The format of a record, and its calls.

    Args:
        record: Parsed JSON.
        fallback_session: The session's name if the record has none.

    Raises:
        BadRecordError: The record has no known format, or lacks a part.
        ValueError: One of its messages is not a message.
    """
    name = format_of(record)
    calls = list(_READERS[name](record, fallback_session))
    if not calls:
        raise BadRecordError(f"a record of the format {name} has no outputs")
    return name, calls


def _openai(record: Mapping[str, Any], session: str) -> Iterator[LoggedCall]:
    request = _body(record.get("request", record.get("input")))
    messages_field = record.get("messages", request.get("messages") if isinstance(request, dict) else None)
    prompt = record.get("prompt", request.get("prompt") if isinstance(request, dict) else request)
    if prompt is None and isinstance(request, dict):
        prompt = request.get("input")
    if messages_field is None and isinstance(prompt, list):
        messages_field = prompt
    if messages_field is not None:
        messages = as_messages(messages_field)
    elif isinstance(prompt, str) and prompt:
        messages = [("user", prompt)]
    else:
        messages = []
    instructions = record.get("instructions", request.get("instructions") if isinstance(request, dict) else None)
    if isinstance(instructions, str) and instructions:
        messages = [("system", instructions), *messages]
    answer = next((record[key] for key in (_RAW_ANSWER, *_ANSWERS) if record.get(key) is not None), None)
    if answer is None:
        raise BadRecordError(f"an answer must be in one of the fields {', '.join(_ANSWERS)}")
    labels = labels_of(record)
    if not labels.session:
        labels = replace(labels, session=_conversation(messages) or session)
    header = ASSISTANT_HEADER if messages else f"{labels.role or 'output'}\n"
    values = messages_field if isinstance(messages_field, list) and len(messages_field) == len(messages) else ()
    for message in _answers(answer):
        recorded = message if isinstance(message, dict) else None
        yield LoggedCall(
            tuple(messages),
            header,
            output_text(message),
            labels,
            message=recorded,
            request=request if isinstance(request, dict) else record,
            prompt_values=values,
            began=time_of(record),
        )


def _answers(answer: Any) -> list[Any]:
    """The messages or texts of a completion, a response body or its choices."""
    answer = _body(answer)
    if isinstance(answer, str):
        return [answer]
    if isinstance(answer, dict):
        if "choices" not in answer:
            return [answer.get("message", answer)]
        answer = answer["choices"]
    if not isinstance(answer, list) or not all(isinstance(choice, dict | str) for choice in answer):
        raise BadRecordError("choices must be a list of objects")
    return [
        choice if isinstance(choice, str) else choice.get("message", choice.get("text", choice)) for choice in answer
    ]


def _body(value: Any) -> Any:
    """The content of a request or response, unwrapped from `body` and from JSON in a string."""
    for _ in range(3):
        if isinstance(value, dict) and isinstance(value.get("body"), dict | str):
            value = value["body"]
        elif isinstance(value, str) and value.startswith("{") and '"choices"' in value:
            try:
                value = json.loads(value)
            except ValueError:
                return value
        else:
            break
    return value


def _conversation(messages: Sequence[tuple[str, str]]) -> str:
    """A name for conversations with the same beginning: requests that continue each other are one session."""
    first = [text for role, text in messages if role != "system"][:1] or [text for _, text in messages]
    if not first:
        return ""
    text = "\0".join([*(text for role, text in messages[:_SAMPLED_MESSAGES] if role == "system"), *first[:1]])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _chat(record: Mapping[str, Any], session: str) -> Iterator[LoggedCall]:
    labels = _trace_labels(record, session)
    values = record["messages"]
    times = [value.get("ts", value.get("timestamp")) for value in values if isinstance(value, dict)]
    if not labels.day and times:
        labels = replace(labels, day=labels_of({"ts": times[0]}).day)
    messages = as_messages(values)
    if len(messages) != len(values):
        # Items were joined, so the other fields no longer belong to single messages.
        yield from chat_calls(messages, labels)
        return
    agents = [str(value.get("name") or value.get("agent") or "") for value in values]
    yield from chat_calls(messages, labels, agents=agents, values=values)


def _staged(record: Mapping[str, Any], session: str) -> Iterator[LoggedCall]:
    values = record["calls"]
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise BadRecordError("calls must be a list of objects")
    labels = _trace_labels(record, session)
    for position, value in enumerate(values):
        stage, output = value.get("stage"), value.get("output")
        if not isinstance(stage, str) or not isinstance(output, str):
            raise BadRecordError("a call has no stage or no output")
        messages = tuple(as_messages(value.get("messages") or []))
        header = ASSISTANT_HEADER if messages else f"{stage}\n"
        began, seconds = value.get("began"), value.get("seconds")
        is_timed = isinstance(began, int | float) and isinstance(seconds, int | float)
        yield LoggedCall(
            messages,
            header,
            output,
            replace(labels, role=shown(stage)),
            position,
            prompt_values=value.get("messages") or (),
            began=began if is_timed else None,
            ended=began + seconds if is_timed else None,
        )


def _trace_labels(record: Mapping[str, Any], session: str) -> Labels:
    """The labels of a trace, whose sessions are unique only within a task and a run."""
    labels = labels_of(record, session=session)
    names = [str(record[key]) for key in ("task", "run") if isinstance(record.get(key), str | int)]
    task = record.get("task")
    return replace(
        labels,
        session="/".join([labels.session, *names]),
        task=str(task) if isinstance(task, str | int) else "",
    )


def _sharegpt(record: Mapping[str, Any], session: str) -> Iterator[LoggedCall]:
    values = record["conversations"]
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise BadRecordError("conversations must be a list of objects")
    system = record.get("system")
    messages = [("system", system)] if isinstance(system, str) and system else []
    for value in values:
        role, text = value.get("from", value.get("role")), value.get("value", value.get("content"))
        if not isinstance(role, str) or not isinstance(text, str):
            raise BadRecordError("a message of a conversation has no `from` or no `value`")
        messages.append((_SHAREGPT_ROLES.get(role, role), text))
    identity = record.get("id")
    labels = labels_of(record, session=str(identity) if isinstance(identity, str | int) else session)
    yield from chat_calls(messages, labels)


def _swe_agent(record: Mapping[str, Any], session: str) -> Iterator[LoggedCall]:
    attempts = record.get("attempts")
    if isinstance(attempts, list) and attempts:
        # The record's other fields repeat the best attempt.
        if not all(isinstance(attempt, dict) for attempt in attempts):
            raise BadRecordError("attempts must be a list of objects")
        for number, attempt in enumerate(attempts, 1):
            yield from _swe_agent({**attempt, "attempts": None}, f"{session}/{number}")
        return
    labels = labels_of(record, session=session)
    history = record.get("history")
    if isinstance(history, list) and history:
        demonstrations = [i for i, value in enumerate(history) if isinstance(value, dict) and value.get("is_demo")]
        messages = as_messages(history)
        agents = [str(value.get("agent") or "") for value in history]
        yield from chat_calls(messages, labels, demonstrations, agents, history)
        return
    steps = record.get("trajectory")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise BadRecordError("a trajectory must be a list of steps")
    messages = []
    for step in steps:
        response, observation = step.get("response"), step.get("observation")
        if isinstance(response, str):
            messages.append(("assistant", response))
        if isinstance(observation, str):
            messages.append(("user", observation))
    # An empty prompt, because otherwise the first response would have none.
    yield from chat_calls([("user", ""), *messages], labels)


def _tokens(record: Mapping[str, Any], session: str) -> Iterator[LoggedCall]:
    tokens, tail = record["tokens"], record.get("num_prompt_tail", 0)
    if not isinstance(tokens, list) or not all(isinstance(t, int) and not isinstance(t, bool) for t in tokens):
        raise BadRecordError("tokens must be a list of token ids")
    if not isinstance(tail, int) or not 0 <= tail < max(len(tokens), 1):
        raise BadRecordError("num_prompt_tail must leave an output")
    labels = labels_of(record, session=str(record.get("request_id") or session))
    if not labels.tenant and isinstance(record.get("namespace"), str):
        labels = replace(labels, tenant=shown(record["namespace"]))
    if tokens:
        yield LoggedCall((), "", "", labels, tokens=tuple(tokens[tail:]))


_READERS: dict[str, Callable[[Mapping[str, Any], str], Iterator[LoggedCall]]] = {
    "openai": _openai,
    "openhands": _openai,
    "sharegpt": _sharegpt,
    "swe-agent": _swe_agent,
    "mini-swe-agent": _chat,
    "chat": _chat,
    "staged": _staged,
    "tokens": _tokens,
}
