"""Real token streams for benches: recorded model outputs, and as much Python source as is needed."""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay import Call, Tokenizer
from agentspec.errors import ConfigError

Tokens = NDArray[np.int32]

_SEED = 0
# Tokens in a piece of source code that serves as an output.
_PIECE = 400
_PROMPT, _MIN_PROMPT = 2500, 2000


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A request in flight: its prompt and the model's continuation."""

    prompt: Tokens
    output: Tokens


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """The streams of a bench; none of them occurs in another."""

    outputs: list[Tokens]
    """Finished outputs for a global index, in the order of insertion."""
    requests: list[Request]
    """Requests to draft for; each prompt has 2k to 3k tokens."""


def gather_texts(
    calls: Sequence[Call],
    tokenizer: Tokenizer,
    *,
    output_tokens: int,
    num_requests: int,
    request_tokens: int,
) -> Texts:
    """Texts from recorded calls, if any, and from the Python source installed here.

    Half of the requests come from the latest calls whose texts are long enough. The outputs of all other calls go to
    `outputs`, mixed with pieces of source until there are `output_tokens` of them.

    Args:
        calls: Recorded calls.
        tokenizer: Turns the source into tokens.
        output_tokens: Tokens of all outputs together.
        num_requests: Number of requests.
        request_tokens: Least number of tokens in a request's output.

    Raises:
        ConfigError: There is not enough text.
    """
    source = _source_pieces(tokenizer)
    chosen = _spread(calls, num_requests // 2, request_tokens)
    requests = [Request(calls[i].prompt[-_PROMPT:], calls[i].output) for i in chosen]
    while len(requests) < num_requests:
        text = _take(source, _PROMPT + request_tokens)
        requests.append(Request(text[:_PROMPT], text[_PROMPT:]))
    recorded = [call.output for i, call in enumerate(calls) if i not in chosen]
    return Texts(_mix(recorded, source, output_tokens), requests)


def _spread(calls: Sequence[Call], number: int, request_tokens: int) -> set[int]:
    """Indexes of calls that are long enough, the latest of each session before any session gives a second one."""
    by_session: dict[str, list[int]] = {}
    for i, call in enumerate(calls):
        if len(call.output) >= request_tokens and sum(map(len, call.prompt_parts)) >= _MIN_PROMPT:
            by_session.setdefault(call.session, []).append(i)
    sessions = list(reversed(by_session.values()))
    chosen: set[int] = set()
    for back in range(1, max(map(len, sessions), default=0) + 1):
        chosen.update([session[-back] for session in sessions if len(session) >= back][: number - len(chosen)])
    return chosen


def _mix(recorded: Sequence[Tokens], source: Iterator[Tokens], output_tokens: int) -> list[Tokens]:
    outputs: list[Tokens] = []
    total = recorded_total = 0
    remaining = iter(recorded)
    while total < output_tokens:
        # Half of each while the records last, so that a small index contains both.
        piece = next(remaining, None) if recorded_total * 2 <= total else None
        if piece is not None:
            recorded_total += len(piece)
        else:
            piece = next(source, None)
            if piece is None:
                raise ConfigError(
                    f"{output_tokens} tokens of text are needed, {total} were found; "
                    "pass more traces with --tokens or smaller --sizes"
                )
        outputs.append(piece)
        total += len(piece)
    return outputs


def _take(source: Iterator[Tokens], length: int) -> Tokens:
    pieces: list[Tokens] = []
    while sum(map(len, pieces)) < length:
        piece = next(source, None)
        if piece is None:
            raise ConfigError("too little Python source is installed; pass traces with --tokens or smaller --sizes")
        pieces.append(piece)
    return np.concatenate(pieces)[:length]


def _source_pieces(tokenizer: Tokenizer) -> Iterator[Tokens]:
    """The source of the standard library and the installed packages, file by file in a fixed random order."""
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    files = sorted({path for folder in folders for path in Path(folder).rglob("*.py")})
    random.Random(_SEED).shuffle(files)
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        tokens = tokenizer.encode(text)
        for begin in range(0, len(tokens), _PIECE):
            # A copy: a view would keep the whole file.
            yield tokens[begin : begin + _PIECE].copy()
