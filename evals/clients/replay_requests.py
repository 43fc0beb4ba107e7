"""Recorded calls as requests that carry their own answers, for a server with `AGENTSPEC_REPLAY=requests`.

The server's target model is forced to write each answer. So a load of real traces runs at the real cost of its steps,
whoever wrote the answers. Prompts have the form of agentspec.analysis.replay.traces, in the served model's tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.calls import BadRecordError, LoggedCall
from agentspec.analysis.logs.source import LogReading, log_files, read_calls
from agentspec.analysis.replay.encoding import Encoder, without_surrogates
from agentspec.analysis.replay.tokenizer import Tokenizer
from agentspec.errors import ConfigError
from agentspec.evals.emulated.draft_hits import AnswerHits, DraftHits


@dataclass(frozen=True, slots=True, eq=False)
class ReplayRequest:
    """A recorded call."""

    input_ids: NDArray[np.int32]
    """int32[n], n >= 1: the end of the prompt."""
    answer_ids: NDArray[np.int32]
    """int32[n], n >= 1, without the token that ends a turn."""
    session: str
    """A name that is unique within the traces that were read."""
    index: int
    """Of the call within its session, from 0."""
    task: str
    """What the session was about; its name if the trace does not say."""
    is_whole: bool
    """Whether the answer is all that was recorded; otherwise it was cut."""
    prompt_tokens_cut: int = 0
    """Tokens removed from the beginning of the prompt."""
    drafted: AnswerHits | None = None
    """Where a recorded draft model drafts the answer; None: the simulated head decides by itself."""

    @property
    def max_new_tokens(self) -> int:
        """The answer and, if it is whole, the token that ends it."""
        return len(self.answer_ids) + self.is_whole

    def body(self) -> dict[str, Any]:
        """The body of a POST to `/generate`."""
        params: dict[str, Any] = {"agentspec": {"replay": {"ids": self.answer_ids.tolist()}}}
        if self.drafted is not None:
            params |= self.drafted.params()
        sampling = {"temperature": 0.0, "max_new_tokens": self.max_new_tokens, "custom_params": params}
        return {"input_ids": self.input_ids.tolist(), "sampling_params": sampling}

    def free_body(self, max_new_tokens: int) -> dict[str, Any]:
        """The body of a POST to `/generate` that the model answers by itself."""
        sampling = {"temperature": 0.0, "max_new_tokens": max_new_tokens}
        return {"input_ids": self.input_ids.tolist(), "sampling_params": sampling}


def replay_requests(
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    max_prompt_tokens: int,
    max_answer_tokens: int,
    limit: int | None = None,
    seed: int = 0,
    hits: DraftHits | None = None,
) -> list[ReplayRequest]:
    """Reads traces into requests, in the order of their recording.

    Args:
        paths: Files or folders of any format that `agentspec report` reads.
        tokenizer: Of the served model.
        max_prompt_tokens: Longer prompts lose their beginning.
        max_answer_tokens: Longer answers lose their end.
        limit: Greatest number of requests; None for all. With a limit sessions are drawn, and all but the last are
            taken whole.
        seed: Of the drawing.
        hits: Of a draft model in these traces; only calls that were recorded with it are read.

    Raises:
        ConfigError: A path does not exist or holds no call with an answer, a limit is below 1, or the hits are those of
            other texts.
    """
    for name, value in (("max_prompt_tokens", max_prompt_tokens), ("max_answer_tokens", max_answer_tokens)):
        if value < 1:
            raise ConfigError(f"{name} must be >= 1, got {value}")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be >= 1, or None for all, got {limit}")
    encoder = Encoder(tokenizer)
    reading = LogReading()
    requests = []
    for session, index, call in _drawn(recorded_sessions(paths, reading), limit, seed):
        try:
            answer, is_whole = _answer(encoder, call, max_answer_tokens)
        except BadRecordError as error:
            raise ConfigError(f"session {session}, call {index}: {error}") from error
        drafted = None
        if hits is not None:
            text = without_surrogates(call.output)
            drafted = hits.of_answer(session, index, text, answer, tokenizer)
            if drafted is None:
                continue
        if len(answer):
            whole = np.concatenate(encoder.prompt_parts(call))
            prompt, task = whole[-max_prompt_tokens:], call.labels.task or session
            cut = len(whole) - len(prompt)
            requests.append(ReplayRequest(prompt, answer, session, index, task, is_whole, cut, drafted))
    if not requests:
        bad = f"; {reading.num_bad} records were bad, the first: {reading.bad[0]['reason']}" if reading.bad else ""
        raise ConfigError(f"no call with an answer in {', '.join(str(path) for path in paths)}{bad}")
    return requests


def from_first_calls(
    requests: Sequence[ReplayRequest], most: int, *, cut_too: bool = False
) -> dict[str, list[ReplayRequest]]:
    """The requests of each session from its first one on, as an agent makes them: each prompt continues the one before.

    A session ends before the first request whose prompt was cut, because that continues nothing. Answers of a single
    token are left out, because none of their tokens is decoded.

    Args:
        requests: In the order of their recording.
        most: Greatest number of requests of a session.
        cut_too: Whether to follow a session whose very first prompt was cut; all its prompts may then be cut.
    """
    sessions: dict[str, list[ReplayRequest]] = {}
    for request in requests:
        sessions.setdefault(request.session, []).append(request)
    found = {}
    for name, some in sessions.items():
        whole = list(takewhile(lambda one: not one.prompt_tokens_cut, some))
        followed = some if cut_too and not whole else whole
        found[name] = [request for request in followed[:most] if len(request.answer_ids) > 1]
    return found


def recorded_sessions(paths: Sequence[Path], reading: LogReading | None = None) -> dict[str, list[LoggedCall]]:
    """The calls of each session in traces.

    Args:
        paths: Files or folders of any format that `agentspec report` reads.
        reading: Takes the notes on what was read.

    Raises:
        ConfigError: A path does not exist.
    """
    reading = LogReading() if reading is None else reading
    sessions: dict[str, list[LoggedCall]] = {}
    for file, call in read_calls(log_files(paths), reading):
        # Different files may use the same names of sessions.
        sessions.setdefault(f"{file.name}:{call.labels.session}", []).append(call)
    return sessions


def _drawn(sessions: dict[str, list[LoggedCall]], limit: int | None, seed: int) -> list[tuple[str, int, LoggedCall]]:
    """The calls of drawn sessions, in the order of the file."""
    left = sum(map(len, sessions.values())) if limit is None else limit
    taken: dict[str, int] = {}
    for name in random.Random(seed).sample(list(sessions), len(sessions)):
        taken[name] = min(left, len(sessions[name]))
        left -= taken[name]
    return [(name, i, call) for name, calls in sessions.items() for i, call in enumerate(calls[: taken[name]])]


def _answer(encoder: Encoder, call: LoggedCall, longest: int) -> tuple[NDArray[np.int32], bool]:
    """The tokens of the answer, and whether they are all. What follows an end of turn would never be written."""
    tokens = encoder.output(call)
    ends = np.flatnonzero(tokens == encoder.tokenizer.end_of_turn)
    length = int(ends[0]) if len(ends) else len(tokens)
    is_whole = length <= longest and length >= len(tokens) - 1
    return tokens[: min(length, longest)], is_whole
