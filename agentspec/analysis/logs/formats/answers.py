"""Requests and answers of model servers, in the forms in which servers return them and programs log them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentspec.analysis.logs.account import Account, Where, type_name
from agentspec.analysis.logs.calls import BadRecordError, NoAnswerError, from_text
from agentspec.analysis.logs.formats import fields
from agentspec.analysis.logs.formats.blocks import Part, is_redacted
from agentspec.analysis.logs.formats.messages import (
    Message,
    is_known_item,
    is_message,
    read_item,
    read_message,
    read_messages,
)
from agentspec.analysis.logs.formats.streams import events_of, is_chunk, is_events, is_stream, joined, stream_of

# The text that a model wrote comes first, where its answer was converted to calls that the model has no format for.
ANSWERS = (
    "raw_response", "completion", "response", "response_body", "responseBody", "out", "output", "outputs", "choices",
    "generations", "result",
)  # fmt: skip
"""The fields of a record that may hold its answer; the first that is there is read."""
REQUESTS = ("request", "request_body", "requestBody", "obj", "input", "inputs")
"""The fields of a record that may hold the body of its request."""
PROMPTS = ("messages", "prompt", "prompts", "input", "contents", "text", "inputs")
"""The fields of a record or of its request that may hold the prompt."""
SYSTEMS = ("system", "instructions", "system_instruction", "systemInstruction")

_BODY_IGNORED = fields.names(
    """
    model temperature top_p top_k min_p max_tokens max_completion_tokens max_output_tokens max_new_tokens n stop
    stop_sequences stream stream_options seed presence_penalty frequency_penalty repetition_penalty logit_bias logprobs
    top_logprobs user tool_choice parallel_tool_calls response_format reasoning reasoning_effort thinking store include
    metadata sampling_params custom_params rid cache_salt chat_template_kwargs extra_body extra_headers service_tier
    anthropic_version betas safety_identifier prompt_cache_key previous_response_id truncation verbosity modalities
    generationConfig generation_config safetySettings toolConfig input_ids parameters options keep_alive role type id
    stop_token_ids ignore_eos return_logprob logprob_start_len top_logprobs_num stream_output lora_path timeout headers
    method url path api_base drop_params num_retries output_config context_management cache_control inferenceConfig
    modelId tool_config guided_json separate_reasoning stream_reasoning prediction echo
    """
)
_BODY_LEFT_OUT = fields.names("tools functions toolConfig tool_schemas image_data audio_data video_data input_ids")
_BODY_KNOWN = _BODY_IGNORED | _BODY_LEFT_OUT | {*PROMPTS, *SYSTEMS}
# Fields of an answer with answers in them: choices, candidates of Gemini, generations of LangChain, and so on.
_INNER = ("choices", "candidates", "generations", "output", "response", "message", "content_message")
_TEXTS = ("text", "generated_text", "completion", "output_text")
_ANSWER_KNOWN = fields.ANSWER_IGNORED | {*_INNER, *_TEXTS}
# JSON leaves other ends of lines as they are within texts, such as U+2028.
_LINE_END = re.compile(r"\r\n|\r|\n")
_SGLANG_CUT = 2048
"""SGLang logs only the first and the last half of this many characters at its level 2, with "..." between them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a model: a message, or token ids alone."""

    message: Message
    tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a request asks."""

    messages: tuple[Message, ...]
    request: Mapping[str, Any] | None
    """The body of the request, if it was recorded."""


def unwrapped(value: Any) -> Any:
    """The content of a request, an answer or a list of messages: unwrapped from `body` and from JSON in a string. A text
    that is JSON stays a text if it does not look like one of these."""
    for _ in range(4):
        if isinstance(value, dict) and isinstance(value.get("body"), dict | str):
            value = value["body"]
        elif isinstance(value, str):
            parsed = from_text(value)
            if parsed is value or not _is_structured(parsed):
                return value
            value = parsed
        else:
            break
    return value


def read_prompt(record: Mapping[str, Any], account: Account) -> Prompt:
    """The messages that a record's request has. Raises ValueError if the messages are malformed."""
    key = next((key for key in REQUESTS if record.get(key) is not None), None)
    request = None if key is None else unwrapped(record[key])
    body = request if isinstance(request, dict) and not is_message(request) else {}
    # SGLang logs its own request with many fields, of which those below have what was asked.
    if body and key != "obj":
        account.check("prompt", "request", body, _BODY_KNOWN)
    if key == "obj" and _is_cut(body.get("text")):
        account.note_left_out("prompt", "middle of a prompt that SGLang's log has cut")
    for key in _BODY_LEFT_OUT:
        for place in (record, body):
            if place.get(key):
                account.note_left_out("prompt", f"request.{key}", place[key])
    places = [(place, key) for key in ("messages", "prompt", "prompts") for place in (record, body)]
    places += [(body, key) for key in PROMPTS[3:]]
    found = next((place[key] for place, key in places if place.get(key) not in (None, "", [], {})), None)
    if found is None and not body:
        found = request
    system = next((place[key] for key in SYSTEMS for place in (record, body) if place.get(key)), None)
    messages = _prompt_messages(unwrapped(found), account)
    if system is not None:
        content = system.get("parts", system) if isinstance(system, dict) else system
        messages = [read_message({"role": "system", "content": content}, account, "prompt"), *messages]
    return Prompt(tuple(messages), request if isinstance(request, dict) else None)


def read_answers(value: Any, account: Account) -> list[Answer]:
    """The answers in a completion, a response's body, its choices or its stream. Raises NoAnswerError if it is known
    why there is none, and ValueError if the form is not known."""
    value = unwrapped(value)
    if isinstance(value, str):
        return _text_answers(value, account)
    if isinstance(value, dict):
        return _object_answers(value, account)
    if not isinstance(value, list):
        raise BadRecordError("an answer must be text, a message or a list of choices")
    values = [inner for inner in map(unwrapped, value) if inner is not None]
    if not values:
        raise NoAnswerError("an answer without content")
    if is_stream(values):
        return _all_answers(joined(values, account), account)
    if all(isinstance(inner, str) and is_events(inner) for inner in values):
        return _text_answers("\n\n".join(values), account)
    if all(isinstance(inner, dict) for inner in values) and any(map(is_known_item, values)):
        return [Answer(read_item({"output": values}, account, "output"))]
    if len(values) > 1 and all(isinstance(inner, dict) and inner.keys() & {"meta_info", "choices"} for inner in values):
        # Chunks of completions and of /generate look like answers, but all have the identity of one.
        streams = {stream_of(inner) for inner in values}
        if len(streams) == 1 and streams != {""}:
            return _all_answers(joined(values, account), account)
    return _all_answers(values, account)


def failed(record: Mapping[str, Any]) -> bool:
    """Whether a record says that its request failed."""
    status = record.get("status")
    return (isinstance(status, str) and status.lower() in ("failure", "failed", "error")) or any(
        record.get(key) for key in ("error", "error_str", "error_message", "exception", "error_information")
    )


def _all_answers(values: Sequence[Any], account: Account) -> list[Answer]:
    found: list[Answer] = []
    for value in values:
        if isinstance(value, dict | str | list):
            found += read_answers(value, account)
        else:
            raise BadRecordError("choices must be a list of objects")
    return found


def _text_answers(text: str, account: Account) -> list[Answer]:
    if is_events(text):
        chunks = []
        for event in events_of(_LINE_END.split(text)):
            if isinstance(event, ValueError):
                account.note_unknown("output", "event that is not JSON", "")
            else:
                chunks.append(event)
        return _all_answers(joined(chunks, account), account)
    lines = [from_text(line) for line in _LINE_END.split(text) if line.strip()] if text.startswith("{") else []
    if is_stream(lines):
        return _all_answers(joined(lines, account), account)
    if is_redacted(text):
        raise NoAnswerError("an answer that the log has redacted")
    account.note_read("output", len(text))
    return [Answer(Message("assistant", (Part("text", text),) if text else ()))]


def _object_answers(value: Mapping[str, Any], account: Account) -> list[Answer]:
    if is_chunk(value):
        return _all_answers(joined([value], account), account)
    if value.get("lc") is not None and isinstance(value.get("kwargs"), dict):
        return [Answer(read_message(value, account, "output"))]
    if is_known_item(value):
        return [Answer(read_item(value, account, "output"))]
    if "message" in value and isinstance(value["message"], dict):
        account.check("output", "choice", value, _ANSWER_KNOWN | {"delta", "text"})
        return _object_answers({"role": "assistant", **value["message"]}, account)
    if isinstance(value.get("content"), dict) and ("parts" in value["content"] or "role" in value["content"]):
        # A candidate of Gemini.
        account.check("output", "candidate", value, _ANSWER_KNOWN | {"content"})
        return [Answer(read_message({"role": "assistant", **value["content"]}, account, "output"))]
    if any(value.get(key) is not None for key in ("content", "parts", *fields.MESSAGE_CALLS)) or "role" in value:
        return _message_answers(value, account)
    inner = next((key for key in _INNER if isinstance(value.get(key), dict | list | str)), None)
    if inner is not None and value[inner] not in ("", [], {}):
        account.check("output", "answer", value, _ANSWER_KNOWN)
        return read_answers(value[inner], account)
    if isinstance(value.get("messages"), list) and value["messages"]:
        # The state of an agent after the call: the last message is new.
        account.check("output", "answer", value, _ANSWER_KNOWN | {"messages"})
        return read_answers(value["messages"][-1:], account)
    if any(isinstance(value.get(key), str) for key in _TEXTS) or isinstance(value.get("output_ids"), list):
        return _generated(value, account)
    if failed(value):
        raise NoAnswerError("a failed request")
    if not value or not value.keys() - fields.ANSWER_IGNORED or inner is not None:
        raise NoAnswerError("an answer without content")
    account.note_unknown("output", "answer of an unknown form", value)
    keys = ", ".join(sorted(type_name(key) for key in list(value)[:6]))
    raise BadRecordError(f"an answer must be text, a message or choices, got an object with the fields {keys}")


def _message_answers(value: Mapping[str, Any], account: Account) -> list[Answer]:
    # The body of an answer of Anthropic's API is a message, with fields that other messages do not have.
    message = {key: inner for key, inner in value.items() if key not in fields.ANSWER_IGNORED or key in _MESSAGE_FIELDS}
    if "role" not in message and message.get("type") not in fields.KNOWN_ROLES:
        message["role"] = "assistant"
    read = read_message(message, account, "output")
    if read.role != "assistant":
        account.note_left_out("output", "message of another role in an answer", value)
        return []
    if not read.parts and failed(value):
        raise NoAnswerError("a failed request")
    return [Answer(read)]


_MESSAGE_FIELDS = fields.names("role type")


def _generated(value: Mapping[str, Any], account: Account) -> list[Answer]:
    """A choice of a completion, or what SGLang's /generate returns."""
    account.check("output", "answer", value, _ANSWER_KNOWN)
    text = next((value[key] for key in _TEXTS if isinstance(value.get(key), str)), "")
    ids = value.get("output_ids")
    is_cut = "meta_info" in value and _is_cut(text)
    if text and not is_cut:
        return _text_answers(text, account)
    if isinstance(ids, list) and ids and all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        return [Answer(Message("assistant", ()), tuple(ids))]
    if is_cut:
        raise NoAnswerError("an answer that SGLang's log has cut: log with --log-requests-level 3")
    return _text_answers(text, account)


def _is_cut(text: Any) -> bool:
    half = _SGLANG_CUT // 2
    return isinstance(text, str) and len(text) == _SGLANG_CUT + 3 and text[half : half + 3] == "..."


def _prompt_messages(found: Any, account: Account) -> list[Message]:
    if found is None or found == "":
        return []
    if isinstance(found, str):
        return [_user(found, account)]
    if isinstance(found, dict):
        if is_message(found):
            return read_messages([found], account)
        inner = next((found[key] for key in PROMPTS if found.get(key)), None)
        if inner is not None:
            return _prompt_messages(unwrapped(inner), account)
        account.note_unknown("prompt", "prompt of an unknown form", found)
        return []
    if not isinstance(found, list):
        raise BadRecordError("messages must be a list of objects")
    while len(found) == 1 and isinstance(found[0], list):
        found = found[0]
    if all(isinstance(inner, int) for inner in found):
        account.note_left_out("prompt", "prompt as token ids")
        return []
    if all(isinstance(inner, str) for inner in found):
        return [_user("\n".join(found), account)]
    # Gemini's API takes contents without a role for the user's.
    found = [{"role": "user", **inner} if isinstance(inner, dict) and "parts" in inner else inner for inner in found]
    return read_messages(found, account)


def _user(text: str, account: Account) -> Message:
    where: Where = "prompt"
    return read_message({"role": "user", "content": text}, account, where)


def _is_structured(value: Any) -> bool:
    """Whether JSON that was stored as a string is a message, a list of them, or a body. A model that was asked for JSON
    does not write such things by chance."""
    if isinstance(value, list):
        while len(value) == 1 and isinstance(value[0], list):
            value = value[0]
        return is_stream(value) or (
            bool(value)
            and all(is_message(inner) or is_chunk(inner) for inner in value)
            and any(is_chunk(inner) or inner.keys() & {"role", "from", "call_id", "lc", "content"} for inner in value)
        )
    if not isinstance(value, dict):
        return False
    if is_chunk(value) or is_message(value) and value.keys() & {"role", "from", "lc", "data"}:
        return True
    return any(
        isinstance(value.get(key), list)
        and value[key]
        and all(isinstance(i, dict) and i.keys() & of for i in value[key])
        for key, of in _BODIES.items()
    )


_BODIES = {
    "choices": {"message", "text", "delta", "finish_reason"},
    "candidates": {"content"},
    "messages": {"role", "from"},
    "contents": {"role", "parts"},
    "output": {"role", "call_id"},
}
"""Lists in the bodies of requests and answers, and fields of which their elements have one."""
