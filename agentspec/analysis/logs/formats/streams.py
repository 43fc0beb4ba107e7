"""Streamed answers: the chunks of a server's stream, put together to the messages that they are of.

A log may keep a stream as a list of chunks, as the text of its server-sent events, or as one record for each chunk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from agentspec.analysis.logs.account import Account, type_name
from agentspec.analysis.logs.formats import fields
from agentspec.analysis.logs.formats.blocks import content_parts

_COMMENTS = re.compile(r"\A(:[^\n]*\n\s*)+")
_MESSAGE_EVENTS = fields.names(
    "message_start message_delta message_stop content_block_start content_block_delta content_block_stop ping"
)
"""Events of Anthropic's API."""
_DELTA_TEXT = {
    "text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json",
    "signature_delta": "signature", "citations_delta": "citation",
}  # fmt: skip
_CHUNK_KNOWN = fields.names(
    "id object created model choices usage system_fingerprint service_tier obfuscation provider citations index"
)
_DELTA_KNOWN = fields.names(
    "role content tool_calls function_call refusal reasoning_content reasoning reasoning_details"
)
_BEDROCK_EVENTS = fields.names("messageStart contentBlockStart contentBlockDelta contentBlockStop messageStop")
_OLLAMA_KNOWN = fields.names(
    """
    model created_at message response thinking done done_reason context total_duration load_duration prompt_eval_count
    prompt_eval_duration eval_count eval_duration remote_model remote_host logprobs
    """
)
_EVENT = re.compile(r"((id|retry|event):[^\n]*\n\s*)*data:")
_RESPONSE_ENDS = ("response.completed", "response.incomplete", "response.failed")


def is_events(text: str) -> bool:
    """Whether a text is a stream of server-sent events."""
    # Some servers begin with a comment.
    start = _COMMENTS.sub("", text[:4096].lstrip())
    return (start.startswith("event:") or _EVENT.match(start) is not None) and ("{" in start or "[DONE]" in start)


def events_of(lines: Iterable[str]) -> Iterator[Any]:
    """The JSON values of server-sent events; what cannot be parsed comes as ValueError."""
    data: list[str] = []
    for line in (*lines, ""):
        line = line.rstrip("\r\n")
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
            # Most servers write each value on one line, and some write no blank lines between them.
            if _is_whole(data):
                yield from _event(data)
                data = []
        elif not line.strip():
            yield from _event(data)
            data = []


def is_chunk(value: Any) -> bool:
    """Whether a value is a part of a stream."""
    if not isinstance(value, dict):
        return False
    kind = value.get("type")
    if isinstance(kind, str) and (kind in _MESSAGE_EVENTS or kind.startswith("response.")):
        return True
    if str(value.get("object", "")).endswith(".chunk"):
        return True
    if is_ollama(value) or value.keys() & _BEDROCK_EVENTS:
        return True
    choices = value.get("choices")
    return isinstance(choices, list) and any(isinstance(c, dict) and isinstance(c.get("delta"), dict) for c in choices)


def is_ollama(value: Mapping[str, Any]) -> bool:
    """Whether a value is an answer of Ollama, or a part of one; only the last part is done."""
    has_text = isinstance(value.get("message"), dict) or isinstance(value.get("response"), str)
    return has_text and {"model", "created_at", "done"} <= value.keys() <= _OLLAMA_KNOWN


def is_stream(values: Sequence[Any]) -> bool:
    """Whether values are the parts of one stream."""
    if not all(isinstance(value, dict) for value in values):
        return False
    if len(values) > 1 and all(isinstance(value.get("candidates"), list) for value in values):
        # A body of Gemini that was not streamed has all answers.
        return True
    return any(map(is_chunk, values)) and all(is_chunk(value) or value.keys() == {"metadata"} for value in values)


def stream_of(chunk: Mapping[str, Any]) -> str:
    """The name of the stream that a chunk belongs to, as far as the chunk tells."""
    for place in (chunk, chunk.get("message"), chunk.get("response"), chunk.get("meta_info")):
        if isinstance(place, dict) and isinstance(place.get("id"), str):
            return str(place["id"])
    return str(chunk.get("responseId") or "")


def joined(chunks: Sequence[Any], account: Account) -> list[dict[str, Any]]:
    """The messages or responses that the chunks of one answer make, in the form of answers that were not streamed."""
    whole = [_of_other_api(chunk, account) for chunk in chunks if isinstance(chunk, dict)]
    if not whole:
        return []
    if any(isinstance(chunk.get("type"), str) and chunk["type"].startswith("response.") for chunk in whole):
        return _responses(whole, account)
    if any(chunk.get("type") in _MESSAGE_EVENTS for chunk in whole):
        return _anthropic(whole, account)
    if any("choices" in chunk for chunk in whole):
        return _completions(whole, account)
    if all(isinstance(chunk.get("text"), str) for chunk in whole):
        return [_generated(whole)]
    account.note_unknown("output", "stream of unknown chunks", whole)
    return []


def _completions(chunks: Sequence[Mapping[str, Any]], account: Account) -> list[dict[str, Any]]:
    """Chunks of chat completions and completions of OpenAI's API, by choice."""
    messages: dict[int, dict[str, Any]] = {}
    calls: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        account.check("output", "chunk", chunk, _CHUNK_KNOWN)
        for choice in chunk.get("choices") or []:
            if not isinstance(choice, dict):
                account.note_unknown("output", "chunk.choices", choice)
                continue
            index = _index(choice)
            message = messages.setdefault(index, {"role": "assistant"})
            delta = choice.get("delta", choice.get("message"))
            if not isinstance(delta, dict):
                delta = {"content": choice.get("text")}
            account.check("output", "delta", delta, _DELTA_KNOWN)
            for field in ("content", "refusal", "reasoning_content", "reasoning"):
                if isinstance(delta.get(field), str):
                    message[field] = message.get(field, "") + delta[field]
            # Mistral's API has blocks where the model thinks.
            blocks = delta.get("content") if isinstance(delta.get("content"), list) else []
            for part in content_parts(blocks, account, "output"):
                field = "reasoning" if part.kind == "reasoning" else "content"
                message[field] = message.get(field, "") + part.text
            whole = [*(delta.get("tool_calls") or [])]
            if isinstance(delta.get("function_call"), dict):
                whole.append({"index": 0, "function": delta["function_call"]})
            for call in whole:
                function = call.get("function", call.get("custom")) if isinstance(call, dict) else None
                if not isinstance(function, dict):
                    account.note_unknown("output", "delta.tool_calls", call)
                    continue
                place, identity, name = call.get("index"), call.get("id"), function.get("name")
                begun = calls.setdefault(index, [])
                known = next((one for one in reversed(begun) if one["place"] == place), None)
                # Some servers do not number the calls, or give all of them the same number.
                is_other = identity not in (None, "", known and known["id"]) or place is identity is None
                if known is None or name and known["name"] and is_other:
                    begun.append(known := {"place": place, "id": identity, "name": "", "arguments": ""})
                known["name"] = known["name"] or name or ""
                arguments = function.get("arguments") or function.get("input") or ""
                known["arguments"] += (
                    arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
                )
    for index, begun in calls.items():
        messages[index]["tool_calls"] = [{key: call[key] for key in ("name", "arguments")} for call in begun]
    return [messages[index] for index in sorted(messages)]


def _of_other_api(chunk: Mapping[str, Any], account: Account) -> Mapping[str, Any]:
    """A part of a stream of Gemini, Bedrock or Ollama as one of OpenAI's; others unchanged."""
    deltas: list[tuple[int, dict[str, Any]]] = []
    if is_ollama(chunk):
        message = chunk.get("message") or {"content": chunk["response"], "thinking": chunk.get("thinking")}
        deltas.append((0, {"reasoning" if key == "thinking" else key: value for key, value in message.items()}))
    elif chunk.keys() & _BEDROCK_EVENTS or chunk.keys() == {"metadata"}:
        event = chunk.get("contentBlockStart") or chunk.get("contentBlockDelta") or {}
        added = event.get("start") or event.get("delta") or {}
        texts = {"content": added.get("text"), "reasoning": (added.get("reasoningContent") or {}).get("text")}
        called = added.get("toolUse")
        function = called and {"name": called.get("name"), "arguments": called.get("input")}
        calls = [{"index": event.get("contentBlockIndex", 0), "function": function}] if called else []
        deltas.append((0, {**texts, "tool_calls": calls}))
    elif isinstance(chunk.get("candidates"), list):
        for candidate in chunk["candidates"]:
            for part in (candidate.get("content") or {}).get("parts") or []:
                called = part.get("functionCall")
                if called:
                    function = {"name": called.get("name"), "arguments": called.get("args") or {}}
                    deltas.append((_index(candidate), {"tool_calls": [{"function": function}]}))
                elif isinstance(part.get("text"), str):
                    field = "reasoning" if part.get("thought") else "content"
                    deltas.append((_index(candidate), {field: part["text"]}))
                else:
                    account.note_unknown("output", "part of a stream", part)
    else:
        return chunk
    return {"choices": [{"index": index, "delta": delta} for index, delta in deltas]}


def _anthropic(chunks: Sequence[Mapping[str, Any]], account: Account) -> list[dict[str, Any]]:
    """Events of Anthropic's API."""
    blocks: dict[int, dict[str, Any]] = {}
    inputs: dict[int, str] = {}
    for chunk in chunks:
        kind, index = chunk.get("type"), _index(chunk)
        if kind == "content_block_start" and isinstance(chunk.get("content_block"), dict):
            blocks[index] = dict(chunk["content_block"])
        elif kind == "content_block_delta" and isinstance(chunk.get("delta"), dict):
            delta, block = chunk["delta"], blocks.setdefault(index, {})
            field = _DELTA_TEXT.get(str(delta.get("type")))
            if field is None:
                account.note_unknown("output", f"delta {type_name(delta.get('type'))}", delta)
            elif field == "partial_json":
                inputs[index] = inputs.get(index, "") + str(delta.get(field) or "")
            elif field in ("text", "thinking"):
                block.setdefault("type", field)
                block[field] = block.get(field, "") + str(delta.get(field) or "")
        elif kind not in _MESSAGE_EVENTS:
            account.note_unknown("output", f"event {type_name(kind)}", chunk)
    for index, text in inputs.items():
        if text:
            blocks[index]["input"] = text
    return [{"role": "assistant", "content": [blocks[index] for index in sorted(blocks)]}] if blocks else []


def _responses(chunks: Sequence[Mapping[str, Any]], account: Account) -> list[dict[str, Any]]:
    """Events of the Responses API: the whole response, or else its items as far as they are there."""
    for chunk in reversed(chunks):
        if chunk.get("type") in _RESPONSE_ENDS and isinstance(chunk.get("response"), dict):
            response = chunk["response"]
            if response.get("output"):
                return [response]
    items = [chunk["item"] for chunk in chunks if chunk.get("type") == "response.output_item.done" and "item" in chunk]
    if items:
        return [{"object": "response", "output": items}]
    text = "".join(
        chunk["delta"]
        for chunk in chunks
        if chunk.get("type") == "response.output_text.delta" and isinstance(chunk.get("delta"), str)
    )
    account.note_left_out("output", "stream of a response without its end")
    return [{"role": "assistant", "content": text}] if text else []


def _generated(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Chunks of SGLang's /generate. Each has the whole text so far, or only what is new if the server runs with
    --incremental-streaming-output."""
    texts = [str(chunk["text"]) for chunk in chunks]
    is_whole = all(after.startswith(before) for before, after in pairwise(texts))
    return {**chunks[-1], "text": texts[-1] if is_whole else "".join(texts)}


def _index(value: Mapping[str, Any]) -> int:
    index = value.get("index")
    return index if isinstance(index, int) else 0


def _is_whole(data: Sequence[str]) -> bool:
    return len(data) == 1 and data[0].rstrip().endswith(("}", "]"))


def _event(data: Sequence[str]) -> Iterator[Any]:
    text = "\n".join(data).strip()
    if not text or text == "[DONE]":
        return
    try:
        yield json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        yield ValueError(f"an event is not JSON: {error}")
