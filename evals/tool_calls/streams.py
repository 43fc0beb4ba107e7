"""Streams answers through SGLang's parsers, as its HTTP process does, and gathers what a client gets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from agentspec.evals.tool_calls.calls import TOOLS
from agentspec.integrations.sglang import stream_parsers

Result = dict[str, Any]

JSON_ARRAY = "json array"
"""The name under which the parser of required calls is checked; SGLang gives it none."""


@dataclass
class Answer:
    """What a client makes of a stream."""

    reasoning: str = ""
    text: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)
    """The names and the arguments of each call, by its index, as far as they came."""

    def add_calls(self, items: Iterable[Any]) -> None:
        for item in items:
            call = self.calls.setdefault(item.tool_index, ["", ""])
            call[0] += item.name or ""
            call[1] += item.parameters or ""

    def parsed_calls(self) -> list[tuple[str, Any]]:
        """The calls in the order in which they came, with the arguments as objects, so that spaces do not count."""
        return [(name, _parsed(arguments)) for name, arguments in self.calls.values()]


def _parsed(arguments: str) -> Any:
    """The arguments as an object; the text itself if it is none."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


class Parsers:
    """Gives streams to SGLang's parsers."""

    def __init__(self, tokenizer: Any) -> None:
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser
        from sglang.srt.function_call.json_array_parser import JsonArrayParser
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        self._tokenizer = tokenizer
        self._calls, self._array, self._reasoning = FunctionCallParser, JsonArrayParser, ReasoningParser
        self._tools = [Tool(**tool) for tool in TOOLS]

    @property
    def call_parsers(self) -> list[str]:
        return [*self._calls.ToolCallParserEnum, JSON_ARRAY]

    @property
    def reasoning_parsers(self) -> list[str]:
        return list(self._reasoning.DetectorMap)

    def whole_calls(self, name: str, text: str) -> Answer:
        """What a client gets without a stream."""
        answer = Answer()
        if name == JSON_ARRAY:
            for index, call in enumerate(json.loads(text)):
                answer.calls[index] = [call["name"], json.dumps(call["parameters"])]
            return answer
        answer.text, items = self._parser(name).parse_non_stream(text)
        for index, item in enumerate(items):
            answer.calls[index] = [item.name or "", item.parameters]
        return answer

    def streamed_calls(self, name: str, increments: Sequence[Sequence[str]]) -> Answer:
        """What a client gets of a stream with these increments, in the parts in which the parser gets each."""
        answer = Answer()
        parser = self._array() if name == JSON_ARRAY else self._parser(name)
        for parts in increments:
            if name == JSON_ARRAY:
                results = [parser.parse_streaming_increment(part, self._tools) for part in parts]
                found = [(result.normal_text, result.calls) for result in results]
            else:
                found = [parser.parse_stream_chunk(part) for part in parts]
            text, items = stream_parsers.gathered(found)
            answer.text += text
            answer.add_calls(items)
        self._end(parser, answer)
        return answer

    def _end(self, parser: Any, answer: Answer) -> None:
        """Does what SGLang does at the end of a stream. The older release only sends the rest of the last arguments."""
        if hasattr(parser, "parse_stream_end"):
            text, items = parser.parse_stream_end()
            answer.text += text or ""
            answer.add_calls(items)
        elif hasattr(parser, "finish"):
            answer.add_calls(parser.finish(self._tools).calls)
        detector = getattr(parser, "detector", parser)
        called, streamed = getattr(detector, "prev_tool_call_arr", []), getattr(detector, "streamed_args_for_tool", [])
        index = len(called) - 1
        if not 0 <= index < len(streamed):
            return
        expected = called[index].get("arguments", {})
        rest = expected if isinstance(expected, str) else json.dumps(expected, ensure_ascii=False)
        if rest.startswith(streamed[index]) and index in answer.calls:
            answer.calls[index][1] += rest[len(streamed[index]) :]

    def _parser(self, name: str) -> Any:
        return self._calls(tools=self._tools, tool_call_parser=name, tokenizer=self._tokenizer)

    def reasoning_parser(self, name: str) -> Any:
        return self._reasoning(name, True, None, None, tokenizer=self._tokenizer)

    def whole_reasoning(self, name: str, text: str) -> Answer:
        reasoning, rest = self.reasoning_parser(name).parse_non_stream(text)
        return Answer(reasoning or "", rest or "")

    def streamed_reasoning(self, name: str, increments: Sequence[Sequence[str]]) -> Answer:
        answer, parser = Answer(), self.reasoning_parser(name)
        found = [parser.parse_stream_chunk(part) for parts in increments for part in parts]
        for reasoning, text in [*found, parser.parse_stream_end()]:
            answer.reasoning += reasoning or ""
            answer.text += text or ""
        return answer


def train_tokenizer(texts: Sequence[str], markers: Sequence[str]) -> Any:
    """A tokenizer of byte pairs, with long tokens of punctuation as those of served models."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=6000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in markers])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


_END = 0
_INCREMENTAL = SimpleNamespace(incremental_streaming_output=True)


class Detokenizer:
    """SGLang's detokenizer, with the tokenizer of a server."""

    def __init__(self, tokenizer: Any) -> None:
        from sglang.srt.managers.detokenizer_manager import DetokenizerManager

        self._manager = object.__new__(DetokenizerManager)
        self._tokenizer = tokenizer
        vars(self._manager).update(
            tokenizer=tokenizer,
            vocab_size=None,
            disable_tokenizer_batch_decode=False,
            is_tool_call_parser_gpt_oss=False,
            tool_close_token_ids=frozenset(),
        )

    def results(self, ids: Sequence[int], widths: Iterable[int]) -> list[Result]:
        """What the HTTP process gets of an answer whose steps accept this many tokens each: always what is new."""
        # Any token stands for the end of the answer, and one for the prompt.
        ids = [*ids, _END]
        prompt = self._tokenizer.encode(".", add_special_tokens=False)
        vars(self._manager)["decode_status"] = {}
        results: list[Result] = []
        start = 0
        for end in accumulate(widths):
            new = ids[start:end]
            reason = {"type": "stop", "matched": _END} if end >= len(ids) else None
            batch = SimpleNamespace(
                rids=["answer"],
                decoded_texts=[""],
                decode_ids=[new if results else [*prompt, *new]],
                read_offsets=[len(prompt)],
                finished_reasons=[reason],
                no_stop_trim=[False],
                skip_special_tokens=[False],
                spaces_between_special_tokens=[True],
            )
            (text,) = self._manager._decode_batch_token_id_output(batch)
            meta_info = {"id": "answer", "finish_reason": reason, "completion_tokens": min(end, len(ids))}
            results.append({"text": text, "output_ids": new, "meta_info": meta_info})
            if reason is not None:
                break
            start = end
        return results


def parts_of(results: Sequence[Result]) -> list[list[str]]:
    """The parts in which agentspec gives the text of each result to a parser."""
    serving: Any = SimpleNamespace(tokenizer_manager=SimpleNamespace(server_args=_INCREMENTAL))
    cutter = stream_parsers.Cutter(serving, skip_special_tokens=False)
    return [cutter.parts(result, result["text"]) for result in results]
