"""Feeds SGLang's streaming parsers of tool calls and reasoning one token at a time, as plain decoding does.

A step may accept a whole draft, whose text then reaches the parsers as one increment. Several parsers handle one event
an increment, for example the name of a call or its end, and lose what else the increment holds: arguments, or a whole
call. So every increment is cut where its tokens end, and the parser gets the parts in turn.

The parsers run in the HTTP process, which gets the ids of a step's tokens beside its text.

SGLang's endpoints send all text of an increment before its calls. Of a step that holds the end of a call and text after it,
/v1/messages would then drop the rest of the call's arguments, and /v1/responses would put the text before the call. So
they are given what they send in the order of the answer.

Ollama's endpoints send no text with the last line of a stream. So the text of the last step is given to them before.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from agentspec.integrations.sglang import arguments
from agentspec.integrations.sglang.sglang_types import OpenAIServing, ToolCallItem

_Reasoning = tuple[str | None, str | None]
"""Reasoning, and other text."""
_Calls = tuple[str, list[ToolCallItem]]
"""Text, and items of tool calls."""

_PARTS = "parts"
"""The key of a result under which the parser of calls finds the parts of its text."""

_tokenizer: Any = None


@lru_cache(1 << 16)
def _text_of(ids: tuple[int, ...], skip_special_tokens: bool) -> str:
    """The text of tokens amid an answer, as SGLang's detokenizer makes it."""
    from sglang.srt.utils.patch_tokenizer import decode_without_hf_kwargs

    # Some tokenizers strip the space of the first token, so another one comes first.
    first = "a"
    ids_in_text = [*_tokenizer.encode(first, add_special_tokens=False), *ids]
    if getattr(_tokenizer, "is_fast", False):
        text: str = _tokenizer.decode(ids_in_text, skip_special_tokens=skip_special_tokens)
    else:
        text = decode_without_hf_kwargs(_tokenizer, ids_in_text, skip_special_tokens)
    return text.removeprefix(first)


class Cutter:
    """Cuts the text of a request's results into what plain decoding would have sent of each token."""

    def __init__(self, serving: OpenAIServing, *, skip_special_tokens: bool) -> None:
        server_args = serving.tokenizer_manager.server_args
        # Whether a result has what came since the one before it, and not all so far.
        self.is_incremental = bool(arguments.setting(server_args, "incremental_streaming_output", False))
        self._skip_special_tokens = skip_special_tokens
        self._num_seen = 0
        # The tokens of a character that is not complete, and the length of their text that plain decoding sends.
        self._open: tuple[int, ...] = ()
        self._num_sent = 0
        # SGLang may hold back the text of a step whose last character is not complete.
        self._lengths: list[int] = []

    def parts(self, result: dict[str, Any], text: str) -> list[str]:
        """The parts of a result's new text."""
        ids: Sequence[int] = result["output_ids"]
        if not self.is_incremental:
            # SGLang adds later tokens to the same list.
            start, self._num_seen = self._num_seen, result["meta_info"]["completion_tokens"]
            ids = ids[start : self._num_seen]
        self._lengths += map(self._added_by, ids)
        parts = []
        while self._lengths and self._lengths[0] <= len(text):
            length = self._lengths.pop(0)
            parts.append(text[:length])
            text = text[length:]
        if text:
            parts.append(text)
        if text and self._lengths:
            self._lengths[0] -= len(text)
        if result["meta_info"]["finish_reason"] is not None:
            # SGLang cuts off the text of what ends an answer. The parsers still get a part for it.
            parts += [""] * len(self._lengths)
        return parts or [""]

    def _added_by(self, token: int) -> int:
        from sglang.utils import find_printable_text

        ids = (*self._open, token)
        text = _text_of(ids, self._skip_special_tokens)
        is_open = text.endswith("\N{REPLACEMENT CHARACTER}")
        num_sent = len(find_printable_text(text) if is_open else text)
        added = max(num_sent - self._num_sent, 0)
        self._open, self._num_sent = (ids, num_sent) if is_open else ((), 0)
        return added


def install(tokenizer: object) -> None:
    """Hooks the endpoints of this process, whose server has this tokenizer."""
    global _tokenizer
    is_first = _tokenizer is None
    _tokenizer = tokenizer
    _text_of.cache_clear()
    if not is_first:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in (
        ("openai.serving_chat.OpenAIServingChat._process_reasoning_stream", _parse_reasoning),
        ("openai.serving_chat.OpenAIServingChat._process_tool_call_stream", _send_calls),
        ("openai.serving_responses.OpenAIServingResponses.responses_stream_generator_non_harmony", _send_response),
        ("ollama.serving.OllamaServing._stream_chat_response", _send_ollama),
        ("ollama.serving.OllamaServing._stream_generate_response", _send_ollama),
    ):
        HookRegistry.register(f"sglang.srt.entrypoints.{target}", hook, HookType.AROUND)
    # Plugins were loaded, and their hooks applied, before the server had a tokenizer.
    HookRegistry.apply_hooks()


def _parts(
    serving: OpenAIServing, index: int, delta: str, parsers: dict[Any, Any], content: dict[str, Any], request: Any
) -> list[str]:
    """The parts of a chat's increment. `parsers`: what SGLang keeps for a stream, by the index of the choice."""
    key = "cutter", index
    if key not in parsers:
        parsers[key] = Cutter(serving, skip_special_tokens=request.skip_special_tokens)
    cutter: Cutter = parsers[key]
    return cutter.parts(content, delta)


def _parse_reasoning(
    original: Callable[..., _Reasoning],
    serving: OpenAIServing,
    index: int,
    delta: str,
    parsers: dict[Any, Any],
    content: dict[str, Any],
    request: object,
    finish_reason_type: str | None = None,
) -> _Reasoning:
    *first, last = _parts(serving, index, delta, parsers, content, request)
    found = [original(serving, index, part, parsers, content, request) for part in first]
    found.append(original(serving, index, last, parsers, content, request, finish_reason_type))
    content[_PARTS] = [text or "" for _, text in found]
    return "".join(reasoning or "" for reasoning, _ in found), "".join(content[_PARTS])


class _Parsed:
    """Takes the place of a parser of calls, for what was found already."""

    def __init__(self, found: _Calls) -> None:
        self._found = found

    def parse_stream_chunk(self, text: str) -> _Calls:
        del text
        return self._found


async def _send_calls(
    original: Callable[..., AsyncIterator[str]],
    serving: Any,
    index: int,
    delta: str,
    parsers: dict[Any, Any],
    content: dict[str, Any],
    request: object,
    *args: object,
    **options: Any,
) -> AsyncIterator[str]:
    """Sends the events of an increment of a chat, of which SGLang also makes those of /v1/messages."""
    others = {name: value for name, value in options.items() if name != "flush"}
    parts = content.get(_PARTS) or _parts(serving, index, delta, parsers, content, request)
    if index not in parsers:
        # SGLang makes the parser.
        async for event in original(serving, index, "", parsers, content, request, *args, **others):
            yield event
    parser = parsers[index]
    if hasattr(parser, "parse_stream_chunk"):
        found = [parser.parse_stream_chunk(part) for part in parts]
        if options.get("flush"):
            found.append(parser.parse_stream_end())
    else:
        # Of an array of required calls.
        tools = serving._effective_tools(request)
        increments = [parser.parse_streaming_increment(part, tools) for part in parts]
        if options.get("flush"):
            increments.append(parser.finish(tools))
        found = [(one.normal_text, one.calls) for one in increments]
    try:
        for run in _runs(found):
            parsers[index] = _Parsed(run)
            async for event in original(serving, index, delta, parsers, content, request, *args, **others):
                yield event
    finally:
        parsers[index] = parser


def _runs(found: Sequence[_Calls]) -> Iterator[_Calls]:
    """What was found in the parts of an increment, gathered as far as its text comes before its calls."""
    run: list[_Calls] = []
    for one in found:
        if one[0] and any(calls for _, calls in run):
            yield gathered(run)
            run = []
        run.append(one)
    yield gathered(run)


def gathered(found: Sequence[_Calls]) -> _Calls:
    """What was found in the parts of an increment, with fewer items: each becomes an event of the stream.

    Neighbours that continue the arguments of one call are joined.
    """
    calls: list[ToolCallItem] = []
    for item in (item for _, items in found for item in items):
        last = calls[-1] if calls else None
        if last is None or last.name or item.name or last.tool_index != item.tool_index:
            calls.append(item)
        else:
            # A copy, because a parser may keep the item that it returned.
            calls[-1] = last.model_copy(update={"parameters": last.parameters + item.parameters})
    return "".join(text or "" for text, _ in found), calls


def _send_response(
    original: Callable[..., AsyncIterator[str]],
    serving: Any,
    request: Any,
    sampling_params: dict[str, Any],
    results: AsyncGenerator[Any, None],
    *args: object,
    **options: object,
) -> AsyncIterator[str]:
    """Sends the events of /v1/responses. It calls its parsers amid the code that sends, so it gets single tokens."""
    by_tokens = getattr(serving, "_encoding_output", lambda: None)() is not None
    if (request.tools or serving.reasoning_parser) and not by_tokens:
        skips = sampling_params.get("skip_special_tokens", True)
        results = _single_tokens(results, Cutter(serving, skip_special_tokens=skips))
    return original(serving, request, sampling_params, results, *args, **options)


async def _single_tokens(results: AsyncGenerator[Any, None], cutter: Cutter) -> AsyncGenerator[dict[str, Any], None]:
    """The results of a request, cut so that each has the text of one more token."""
    num_sent = 0
    async with contextlib.aclosing(results):
        async for result in results:
            chunk: dict[str, Any] = result if isinstance(result, dict) else result.last_output
            text: str = chunk["text"]
            start, end = (0, 0) if cutter.is_incremental else (0, num_sent)
            for part in cutter.parts(chunk, text[end:])[:-1]:
                start, end = end if cutter.is_incremental else 0, end + len(part)
                yield {**chunk, "text": text[start:end], "meta_info": {**chunk["meta_info"], "finish_reason": None}}
            yield {**chunk, "text": text[end:]} if cutter.is_incremental else chunk
            num_sent = len(text)


def _send_ollama(original: Callable[..., Awaitable[object]], serving: Any, *args: object) -> Awaitable[object]:
    """Sends the lines of a stream of Ollama's /api/chat or /api/generate."""
    serving = copy.copy(serving)
    serving.tokenizer_manager = _TextBeforeEnd(serving.tokenizer_manager)
    return original(serving, *args)


class _TextBeforeEnd:
    """Takes the place of SGLang's manager, for results of which the last one brings no text."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    async def generate_request(self, *args: object) -> AsyncIterator[dict[str, Any]]:
        num_sent = 0
        async with contextlib.aclosing(self._manager.generate_request(*args)) as results:
            async for result in results:
                text = result.get("text", "")
                if result["meta_info"]["finish_reason"] is not None and len(text) > num_sent:
                    yield {**result, "meta_info": {**result["meta_info"], "finish_reason": None}}
                num_sent = len(text)
                yield result
