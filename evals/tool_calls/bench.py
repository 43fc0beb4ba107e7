"""`agentspec bench tool-calls`: whether a stream of tool calls and reasoning is the same whatever a step accepted.

Dataset: random answers with 1 to 4 calls, in the format of each parser of the installed SGLang; for the parsers of
reasoning, random reasoning and text. The markers of the formats are tokens of the vocabulary. Half of the answers are
written with them, and half spell each marker in several other tokens.
Metric: answers that differ.

    damaged      streams of whole steps from those of single tokens, without agentspec's hooks
    differ       the same with the hooks; 0 is right
    upstream     streams of single tokens from the answer without a stream: SGLang's own, whatever a step accepts
    split        the same, of answers whose markers are several tokens

Pattern: each answer is tokenized and, with SGLang's detokenizer, streamed in steps that accept 1 to W tokens, in this
process, without a server.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from typing import Any

from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.files import write_json
from agentspec.evals.options import Options
from agentspec.evals.tables import aligned
from agentspec.evals.tool_calls.calls import draw_call, draw_prose, draw_text
from agentspec.evals.tool_calls.formats import FORMATS, MARKERS, Format, parser_of
from agentspec.evals.tool_calls.streams import Answer, Detokenizer, Parsers, parts_of, train_tokenizer
from agentspec.integrations.sglang import stream_parsers
from agentspec.integrations.sglang_cpu import activate
from agentspec.progress import Progress

_TRAINING_ANSWERS = 30
_SHORT = 3
"""Most words of a text for parsers that are slow."""
_REASONING = "reasoning "
_HARMONY = "<|channel|>analysis<|message|>{reasoning}<|end|><|start|>assistant<|channel|>final<|message|>{text}"
_CHANNELS = {
    **dict.fromkeys(("gpt-oss", "beam", "response_template"), _HARMONY),
    "inkling": "<|message_model|><|content_thinking|>{reasoning}<|end_message|>"
    "<|message_model|><|content_text|>{text}<|end_message|>",
    "kimi_k3": "<|open|>think<|sep|>{reasoning}<|close|>think<|sep|><|open|>response<|sep|>{text}<|close|>response<|sep|>",
    "muse": " to=self<|message|>{reasoning}<|eom|><|start|>assistant to=user<|message|>{text}<|eot|>",
}
"""The reasoning parsers whose formats are more than a marker before and one after the reasoning."""


@dataclass(frozen=True)
class Row:
    """How many answers of a parser differ at a width."""

    parser: str
    width: int
    answers: int
    damaged: int
    differ: int
    upstream: int
    split: int
    plain_us: float
    """Microseconds of the parser for each step's text, if it gets a token at a time."""
    whole_us: float
    """Microseconds for each step's text, if it gets the text as a whole."""
    hooked_us: float
    """Microseconds for each step's text with the hooks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.number("--answers", 1000, "draw N answers for each parser and width")
    options.numbers("--widths", (16, 64), "most tokens that a step accepts")
    options.number("--seed", 0, "seed of the answers")
    options.file("--json", "write the figures to FILE")


def run(args: argparse.Namespace) -> int:
    """Prints a row for each parser and width. Returns 1 if a hooked stream differs.

    Raises:
        ConfigError: This eval knows no format for a parser.
    """
    logging.disable(logging.ERROR)
    bench = Bench(args.seed)
    names = bench.names()
    rows: list[Row] = []
    with Progress("bench tool-calls", len(names) * len(args.widths)) as progress:
        for name in names:
            for width in args.widths:
                rows.append(bench.measure(name, width, args.answers))
                progress.update(len(rows), f"{name}, {width}")
    print("\n".join(table(rows)))
    head = {**describe(("agentspec", "sglang", "transformers")), "seed": args.seed}
    write_json(args.json, {"head": head, "rows": [asdict(row) for row in rows]})
    return int(any(row.differ for row in rows))


class Bench:
    """The parsers of the installed SGLang, and tokenizers for their answers."""

    def __init__(self, seed: int) -> None:
        # Before SGLang is imported.
        activate()
        rng = random.Random(seed)
        texts = [draw_answer(written, rng) for written in FORMATS.values() for _ in range(_TRAINING_ANSWERS)]
        tokenizer = train_tokenizer(texts, MARKERS)
        _give_template(tokenizer)
        # The second one has the same tokens without the markers.
        self._writers = [tokenizer, train_tokenizer(texts, ())]
        self._parsers = Parsers(tokenizer)
        self._detokenizer = Detokenizer(tokenizer)
        stream_parsers.install(tokenizer)
        self._seed = seed

    def names(self) -> list[str]:
        """The names of rows: a parser of calls or, with its format, one of several, and the parsers of reasoning.

        Raises:
            ConfigError: SGLang has a parser for which there is no format here.
        """
        parsers = self._parsers
        missing = sorted(set(parsers.call_parsers) - set(map(parser_of, FORMATS)))
        if missing:
            raise ConfigError(
                f"SGLang has parsers without a format in evals/tool_calls/formats.py: {', '.join(missing)}"
            )
        calls = [name for name in FORMATS if parser_of(name) in parsers.call_parsers]
        return [*calls, *(f"{_REASONING}{name}" for name in parsers.reasoning_parsers)]

    def measure(self, name: str, width: int, num_answers: int) -> Row:
        """Streams random answers of one parser."""
        rng = random.Random(f"{self._seed} {name} {width}")
        counts = dict.fromkeys(("damaged", "differ", "upstream", "split"), 0)
        seconds = [0.0, 0.0, 0.0]
        num_steps = 0
        for i in range(num_answers):
            text, whole, streamed = self._case(name, rng)
            ids = self._writers[i % 2].encode(text, add_special_tokens=False)
            tokens = self._detokenizer.results(ids, itertools.repeat(1))
            steps = self._detokenizer.results(ids, iter(lambda: rng.randint(1, width), 0))
            num_steps += len(steps)
            began = time.process_time()
            plain = streamed([[token["text"]] for token in tokens])
            between = time.process_time()
            hooked = streamed(parts_of(steps))
            end = time.process_time()
            whole_steps = streamed([[step["text"]] for step in steps])
            for place, taken in enumerate((between - began, time.process_time() - end, end - between)):
                seconds[place] += taken
            counts["damaged"] += whole_steps != plain
            counts["differ"] += hooked != plain
            counts[("upstream", "split")[i % 2]] += _content(plain) != _content(whole)
        per_step = [1e6 * each / max(num_steps, 1) for each in seconds]
        return Row(
            name, width, num_answers, **counts, plain_us=per_step[0], whole_us=per_step[1], hooked_us=per_step[2]
        )

    def _case(self, name: str, rng: random.Random) -> tuple[str, Answer, Callable[[Sequence[Sequence[str]]], Answer]]:
        """An answer, what SGLang makes of it as a whole, and a function that streams parts of increments."""
        parsers = self._parsers
        if name.startswith(_REASONING):
            parser = name.removeprefix(_REASONING)
            text = draw_reasoning(parser, parsers.reasoning_parser(parser).detector, rng)
            return text, parsers.whole_reasoning(parser, text), partial(parsers.streamed_reasoning, parser)
        parser = parser_of(name)
        text = draw_answer(FORMATS[name], rng)
        return text, parsers.whole_calls(parser, text), partial(parsers.streamed_calls, parser)


def draw_answer(written: Format, rng: random.Random) -> str:
    """An answer with 1 to 4 calls, and in two of three cases text before them."""
    calls = [
        draw_call(rng, hard=written.escapes, most_words=_SHORT if written.is_slow else 40)
        for _ in range(rng.randint(1, written.most_calls))
    ]
    return written.write(draw_prose(rng) if written.has_text and rng.random() < 2 / 3 else "", calls)


def draw_reasoning(parser: str, detector: Any, rng: random.Random) -> str:
    """Reasoning and the text after it, as models of a parser write them."""
    reasoning, text = draw_text(rng, 60, hard=True), draw_prose(rng)
    if parser in _CHANNELS:
        return _CHANNELS[parser].format(reasoning=reasoning, text=text)
    # Models whose prompt ends with the first marker do not write it.
    start = detector.think_start_token + detector.think_start_self_label if rng.random() < 0.8 else ""
    return f"{start}{reasoning}{detector.think_end_token}{text}"


def table(rows: Sequence[Row]) -> list[str]:
    shown = [
        [format(value, ".0f") if isinstance(value, float) else str(value) for value in astuple(row)] for row in rows
    ]
    return aligned([[name.removesuffix("_us") for name in Row.__dataclass_fields__], *shown])


def _content(answer: Answer) -> tuple[object, ...]:
    """What should not depend on whether there is a stream. Spaces around texts may."""
    return answer.reasoning.strip(), answer.parsed_calls() or answer.text.strip()


def _give_template(tokenizer: Any) -> None:
    """Gives a tokenizer the format that one of the parsers reads from it. The older release has no such parser."""
    try:
        from sglang.srt.parser.beam import BEAM_RESPONSE_TEMPLATE
    except ImportError:
        return
    tokenizer.response_template = BEAM_RESPONSE_TEMPLATE
