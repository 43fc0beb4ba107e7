"""Recorded calls as requests that carry their own answers, for a server with `AGENTSPEC_REPLAY=requests`.

The server's target model is forced to write each answer. So a load of real traces runs at the real cost of its steps,
whoever wrote the answers. Prompts have the form of agentspec.analysis.replay.traces, in the served model's tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.calls import BadRecordError, LoggedCall
from agentspec.analysis.logs.encoding import Encoder
from agentspec.analysis.logs.source import LogReading, log_files, read_calls
from agentspec.analysis.replay.tokenizer import Tokenizer
from agentspec.errors import ConfigError


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

    @property
    def max_new_tokens(self) -> int:
        """The answer and, if it is whole, the token that ends it."""
        return len(self.answer_ids) + self.is_whole

    def body(self) -> dict[str, Any]:
        """The body of a POST to `/generate`."""
        return {
            "input_ids": self.input_ids.tolist(),
            "sampling_params": {
                "temperature": 0.0,
                "max_new_tokens": self.max_new_tokens,
                "custom_params": {"agentspec": {"replay": {"ids": self.answer_ids.tolist()}}},
            },
        }

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

    Raises:
        ConfigError: A path does not exist or holds no call with an answer, or a limit is below 1.
    """
    for name, value in (("max_prompt_tokens", max_prompt_tokens), ("max_answer_tokens", max_answer_tokens)):
        if value < 1:
            raise ConfigError(f"{name} must be >= 1, got {value}")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be >= 1, or None for all, got {limit}")
    encoder = Encoder(tokenizer)
    reading = LogReading()
    requests = []
    for session, index, call in _drawn(_sessions(paths, reading), limit, seed):
        try:
            answer, is_whole = _answer(encoder, call, max_answer_tokens)
        except BadRecordError as error:
            raise ConfigError(f"session {session}, call {index}: {error}") from error
        if len(answer):
            whole = np.concatenate(encoder.prompt_parts(call))
            prompt, task = whole[-max_prompt_tokens:], call.labels.task or session
            cut = len(whole) - len(prompt)
            requests.append(ReplayRequest(prompt, answer, session, index, task, is_whole, cut))
    if not requests:
        bad = f"; {reading.num_bad} records were bad, the first: {reading.bad[0]['reason']}" if reading.bad else ""
        raise ConfigError(f"no call with an answer in {', '.join(str(path) for path in paths)}{bad}")
    return requests


def _sessions(paths: Sequence[Path], reading: LogReading) -> dict[str, list[LoggedCall]]:
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
