"""What servers are asked on the GPU machine: recorded calls as token ids, made before the trip.

warm        calls of other sessions, answered before anything is measured, so that there is something to draft from
measured    calls of their own for each number of clients; a server is never asked one twice
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay.tokenizer import Tokenizer
from agentspec.errors import ConfigError
from agentspec.evals.clients.replay_requests import ReplayRequest, replay_requests


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded set, and how much of it is asked."""

    file: str
    warm_calls: int = 96
    """Calls that are answered before anything is measured."""
    scale: float = 1.0
    """1 means about three measured calls a client, fewer for many clients."""


TRACES = {
    "sql": Trace("sql_intercode_spider.jsonl.xz"),
    "swe": Trace("swe_mini_agent.jsonl.xz"),
    "tools": Trace("tools_tau_airline.jsonl.xz"),
    # It has 160 calls.
    "chat": Trace("chat_mt_bench.jsonl.xz", warm_calls=40, scale=0.5),
    "math": Trace("math_gsm8k.jsonl.xz"),
}
"""Replayed traces. chat and math are controls, which repeat little."""
CONCURRENCIES = (1, 4, 16, 64)
_FORMAT = 1


@dataclass(frozen=True, slots=True, eq=False)
class RecordedCall:
    """A prompt and the answer that the server is forced to write."""

    prompt: NDArray[np.int32]
    answer: NDArray[np.int32]
    is_whole: bool
    """Whether the answer is all that was recorded, so that the end of the turn follows."""

    def body(self) -> dict[str, Any]:
        """The body of a POST to `/generate` of a server with `AGENTSPEC_REPLAY=requests`."""
        return ReplayRequest(self.prompt, self.answer, "", 0, "", self.is_whole).body()


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """The calls of one trace."""

    trace: str
    warm: tuple[RecordedCall, ...]
    measured: Mapping[int, tuple[RecordedCall, ...]]
    """By number of clients."""


def num_calls(clients: int, scale: float) -> int:
    """Number of measured calls with `clients` clients: several for each client, a few for one client."""
    return max(clients, round(scale * (3 * clients if clients < 16 else 2 * clients + 8)), 2)


def make_work(
    trace: str,
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    concurrencies: Sequence[int],
    warm_calls: int,
    scale: float,
    max_prompt_tokens: int,
    max_answer_tokens: int,
    seed: int,
    vocab_size: int,
    end: int,
) -> Work:
    """Reads a trace and divides its sessions: the first drawn are warm, the others measured.

    Args:
        trace: Its name.
        paths: Its files.
        tokenizer: Of the served model.
        concurrencies: Numbers of clients.
        warm_calls: Number of calls that are answered before the measurement.
        scale: 1 means about 3 calls a client, fewer for many clients.
        max_prompt_tokens: Longer prompts lose their beginning.
        max_answer_tokens: Longer answers lose their end.
        seed: Of the drawing.
        vocab_size: Size of the model's vocabulary.
        end: The token that ends its turns; it replaces tokens beyond the vocabulary.

    Raises:
        ConfigError: The trace has too few calls.
    """
    needed = warm_calls + sum(num_calls(clients, scale) for clients in concurrencies)
    found = replay_requests(
        paths,
        tokenizer,
        max_prompt_tokens=max_prompt_tokens,
        max_answer_tokens=max_answer_tokens,
        # Repeated prompts are left out, so more calls have to be read.
        limit=2 * needed,
        seed=seed,
    )

    def call(request: ReplayRequest) -> RecordedCall:
        prompt, answer = (np.where(part < vocab_size, part, end) for part in (request.input_ids, request.answer_ids))
        return RecordedCall(prompt.astype(np.int32), answer.astype(np.int32), request.is_whole)

    # The prefill writes an answer of a single token, so that nothing is decoded.
    distinct = list({r.input_ids.tobytes(): r for r in found if len(r.answer_ids) > 1}.values())
    learnt = {r.session for r in distinct[:warm_calls]}
    rest = [call(r) for r in distinct if r.session not in learnt]
    if len(rest) < needed - warm_calls:
        raise ConfigError(
            f"the trace {trace} must have {needed - warm_calls} calls with different prompts in sessions that are not "
            f"warm, got {len(rest)}; ask for fewer"
        )
    warm = [call(r) for r in distinct[:warm_calls]]
    measured = {}
    for clients in concurrencies:
        number = num_calls(clients, scale)
        measured[clients], rest = tuple(rest[:number]), rest[number:]
    return Work(trace, tuple(warm), measured)


def save_work(path: Path, works: Sequence[Work]) -> None:
    """Writes works to one compressed file."""
    calls: list[RecordedCall] = []
    groups: list[tuple[str, int, int]] = []
    for work in works:
        for clients, some in ((0, work.warm), *work.measured.items()):
            groups.append((work.trace, clients, len(some)))
            calls += some
    np.savez_compressed(
        path,
        format=np.int64(_FORMAT),
        traces=np.array([trace for trace, _, _ in groups]),
        clients=np.array([clients for _, clients, _ in groups], np.int64),
        counts=np.array([count for _, _, count in groups], np.int64),
        whole=np.array([call.is_whole for call in calls], bool),
        lengths=np.array([(len(call.prompt), len(call.answer)) for call in calls], np.int64).reshape(-1, 2),
        tokens=np.concatenate(
            [np.zeros(0, np.int32), *(part for call in calls for part in (call.prompt, call.answer))]
        ),
    )


def load_work(path: Path) -> dict[str, Work]:
    """What save_work() wrote, by trace.

    Raises:
        ConfigError: The file does not exist or is of another kind.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            content = {name: data[name] for name in data.files}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} must be work made by `--part prepare`: {error}") from error
    if int(content.get("format", 0)) != _FORMAT:
        raise ConfigError(f"{path} must be work of the format {_FORMAT}; prepare it anew")
    parts = np.split(content["tokens"], np.cumsum(content["lengths"].ravel())[:-1])
    calls = [
        RecordedCall(parts[2 * i], parts[2 * i + 1], bool(is_whole)) for i, is_whole in enumerate(content["whole"])
    ]
    warm: dict[str, tuple[RecordedCall, ...]] = {}
    measured: dict[str, dict[int, tuple[RecordedCall, ...]]] = {}
    begin = 0
    for trace, clients, count in zip(
        content["traces"].tolist(), content["clients"].tolist(), content["counts"].tolist(), strict=True
    ):
        some = tuple(calls[begin : begin + count])
        begin += count
        if clients:
            measured.setdefault(trace, {})[clients] = some
        else:
            warm[trace] = some
    return {trace: Work(trace, some, measured.get(trace, {})) for trace, some in warm.items()}
