"""Feeds SGLang's streaming parsers of tool calls and reasoning one token at a time, as plain decoding does.

A step may accept a whole draft, whose text then reaches the parsers as one increment. Several parsers handle one event
an increment, for example the name of a call or its end, and lose what else the increment holds: arguments, or a whole
call. So every increment is cut where its tokens end, and the parser gets the parts in turn.

The parsers run in the HTTP process. It gets the text of a step, so the text is tokenized again to find where its tokens
end. Wherever it is cut, the parts together are the text.

SGLang's endpoints send all text of an increment before its calls. Of a step that holds the end of a call and text after it,
/v1/messages would then drop the rest of the call's arguments, and /v1/responses would put the text before the call. So
they are given what they send in the order of the answer.

Ollama's endpoints send no text with the last line of a stream. So the text of the last step is given to them before.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from agentspec.integrations.sglang import arguments
from agentspec.integrations.sglang.sglang_types import OpenAIServing, ParsedIncrement, ToolCallItem

_Reasoning = tuple[str | None, str | None]
"""Reasoning, and other text."""
_Calls = tuple[str, list[ToolCallItem]]
"""Text, and items of tool calls."""

_cutter: TextCutter | None = None


class TextCutter:
    """Cuts a text into parts that hold at most one token each, or at most one word where tokens are not known."""

    def __init__(self, tokenizer: Any) -> None:
        # Only the fast tokenizers tell where in the text a token ends.
        self._tokenizer = tokenizer if getattr(tokenizer, "is_fast", False) else None
        added: Iterable[str] = getattr(tokenizer, "get_added_vocab", dict)()
        markers = map(re.escape, sorted(filter(None, added), key=len, reverse=True))
        # What looks like a tag may be a marker that the vocabulary does not name.
        self._words = re.compile("|".join([*markers, r"<[^<>\s]{1,60}>", r" ?\w+", r"\s+", "."]), re.DOTALL)

    def parts(self, text: str) -> list[str]:
        """The parts of a text, in order. An empty text is one part."""
        if len(text) < 2:
            return [text]
        if self._tokenizer is None:
            return self._words.findall(text)
        tokens = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        # The tokens of one character, such as an emoji's, have the same end.
        ends = sorted({end for _, end in tokens["offset_mapping"] if 0 < end < len(text)})
        return [text[start:end] for start, end in pairwise([0, *ends, len(text)])]


def install(tokenizer: object) -> None:
    """Hooks the parsers of this process, whose server has this tokenizer."""
    global _cutter
    is_first = _cutter is None
    _cutter = TextCutter(tokenizer)
    if not is_first:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in (
        ("parser.reasoning_parser.ReasoningParser.parse_stream_chunk", _parse_reasoning),
        ("function_call.function_call_parser.FunctionCallParser.parse_stream_chunk", _parse_calls),
        ("function_call.json_array_parser.JsonArrayParser.parse_streaming_increment", _parse_array),
        ("entrypoints.openai.serving_chat.OpenAIServingChat._process_tool_call_stream", _send_calls),
        (
            "entrypoints.openai.serving_responses.OpenAIServingResponses.responses_stream_generator_non_harmony",
            _send_response,
        ),
        ("entrypoints.ollama.serving.OllamaServing._stream_chat_response", _send_ollama),
        ("entrypoints.ollama.serving.OllamaServing._stream_generate_response", _send_ollama),
    ):
        HookRegistry.register(f"sglang.srt.{target}", hook, HookType.AROUND)
    # Plugins were loaded, and their hooks applied, before the server had a tokenizer.
    HookRegistry.apply_hooks()


def _parts(text: str) -> list[str]:
    return [text] if _cutter is None else _cutter.parts(text)


def _parse_reasoning(original: Callable[[object, str], _Reasoning], parser: object, chunk_text: str) -> _Reasoning:
    found = [original(parser, part) for part in _parts(chunk_text)]
    return "".join(reasoning or "" for reasoning, _ in found), "".join(text or "" for _, text in found)


def _parse_calls(original: Callable[[object, str], _Calls], parser: object, chunk_text: str) -> _Calls:
    return _gathered([original(parser, part) for part in _parts(chunk_text)])


def _parse_array(
    original: Callable[[object, str, object], ParsedIncrement], parser: object, new_text: str, tools: object
) -> ParsedIncrement:
    found = [original(parser, part, tools) for part in _parts(new_text)]
    text, calls = _gathered([(one.normal_text, one.calls) for one in found])
    return found[-1].model_copy(update={"normal_text": text, "calls": calls})


def _gathered(found: Sequence[_Calls]) -> _Calls:
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
    parsers: dict[int, Any],
    content: object,
    request: object,
    *args: object,
    **options: Any,
) -> AsyncIterator[str]:
    """Sends the events of an increment of a chat, of which SGLang also makes those of /v1/messages."""
    others = {name: value for name, value in options.items() if name != "flush"}
    if index not in parsers:
        # SGLang makes the parser.
        async for event in original(serving, index, "", parsers, content, request, *args, **others):
            yield event
    parser = parsers[index]
    # Without the hooks, which would cut each part again.
    if hasattr(parser, "parse_stream_chunk"):
        parse = inspect.unwrap(type(parser).parse_stream_chunk)
        found = [parse(parser, part) for part in _parts(delta)]
        if options.get("flush"):
            found.append(parser.parse_stream_end())
    else:
        # Of an array of required calls.
        tools = serving._effective_tools(request)
        parse = inspect.unwrap(type(parser).parse_streaming_increment)
        increments = [parse(parser, part, tools) for part in _parts(delta)]
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
            yield _gathered(run)
            run = []
        run.append(one)
    yield _gathered(run)


def _send_response(
    original: Callable[..., AsyncIterator[str]],
    serving: OpenAIServing,
    request: Any,
    sampling_params: object,
    results: AsyncGenerator[Any, None],
    *args: object,
    **options: object,
) -> AsyncIterator[str]:
    """Sends the events of /v1/responses. It calls its parsers amid the code that sends, so it gets single tokens."""
    by_tokens = getattr(serving, "_encoding_output", lambda: None)() is not None
    if request.tools and not by_tokens:
        manager = serving.tokenizer_manager
        is_incremental = bool(arguments.setting(manager.server_args, "incremental_streaming_output", False))
        results = _single_tokens(results, is_incremental=is_incremental)
    return original(serving, request, sampling_params, results, *args, **options)


async def _single_tokens(
    results: AsyncGenerator[Any, None], *, is_incremental: bool
) -> AsyncGenerator[dict[str, Any], None]:
    """The results of a request, cut so that each has at most one more token of text. `is_incremental`: whether a result
    has the text since the one before it, and not all text so far."""
    num_sent = 0
    async with contextlib.aclosing(results):
        async for result in results:
            chunk: dict[str, Any] = result if isinstance(result, dict) else result.last_output
            text: str = chunk["text"]
            start, end = (0, 0) if is_incremental else (0, num_sent)
            *parts, _ = _parts(text[end:])
            for part in parts:
                start, end = end if is_incremental else 0, end + len(part)
                yield {**chunk, "text": text[start:end], "meta_info": {**chunk["meta_info"], "finish_reason": None}}
            yield {**chunk, "text": text[end:]} if is_incremental else chunk
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
