"""What servers are asked on the GPU host: recorded sessions as token ids, made before the trip.

    warm        sessions that are answered before anything is measured, so that there is something to draft from
    measured    sessions of their own for each number of clients and each repetition; a server is never asked one twice

Sessions begin with their first call. Each client asks a session's calls one after another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.analysis.replay.tokenizer import Tokenizer
from agentspec.errors import ConfigError
from agentspec.evals.clients.replay_requests import from_first_calls, replay_requests
from agentspec.evals.workloads.task import Conversation, FixedCall

_FORMAT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A recorded set, and how much of it is asked."""

    file: str
    calls: int
    """The greatest number of calls of a session."""
    warm: int
    """Number of warm sessions; of other tasks than the measured ones."""
    sessions: int
    """Measured sessions of a cell for each client, up to `most` in total."""
    most: int
    alone: int
    """Measured sessions of a cell with one client."""

    def num_sessions(self, clients: int) -> int:
        """Of a cell."""
        return self.alone if clients == 1 else min(self.sessions * clients, self.most)


TRACES = {
    "sql": Trace(file="sql_intercode_spider.jsonl.xz", calls=10, warm=32, sessions=3, most=120, alone=6),
    "swe": Trace(file="swe_mini_agent.jsonl.xz", calls=8, warm=8, sessions=1, most=16, alone=1),
}


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """Sessions that are asked together; `clients` is 0 for the warm ones."""

    trace: str
    clients: int
    repetition: int
    sessions: tuple[Conversation, ...]


def make_cells(
    name: str,
    of: Trace,
    folder: Path,
    tokenizer: Tokenizer,
    *,
    clients: Sequence[int],
    repetitions: int,
    max_prompt_tokens: int,
    max_answer_tokens: int,
    seed: int,
) -> list[Cell]:
    """Draws the sessions of a trace: the warm cell comes first.

    Args:
        name: The trace's.
        of: How much of it is asked.
        folder: Has its file.
        tokenizer: Of the served model.
        clients: Numbers of clients.
        repetitions: Of each number of clients.
        max_prompt_tokens: A session ends before the first call with a longer prompt.
        max_answer_tokens: Longer answers lose their end.
        seed: Of the drawing.

    Raises:
        ConfigError: The trace is missing or has too few sessions.
    """
    path = folder / of.file
    if not path.is_file():
        raise ConfigError(f"--traces must be a folder with {of.file}, got {folder}; check the path")
    requests = replay_requests(
        [path], tokenizer, max_prompt_tokens=max_prompt_tokens, max_answer_tokens=max_answer_tokens, seed=seed
    )
    sessions = list(from_first_calls(requests, of.calls).values())
    rng = np.random.default_rng(seed)
    tasks: dict[str, list[Conversation]] = {}
    for one in (sessions[i] for i in rng.permutation(len(sessions))):
        if one:
            calls = tuple(FixedCall(request.body(), answer=tuple(request.answer_ids.tolist())) for request in one)
            tasks.setdefault(one[0].task, []).append(Conversation(one[0].session, calls))
    # Whole tasks are warm; the others' sessions are measured, first one of each task.
    warm: list[Conversation] = []
    left = list(tasks.values())
    while left and len(warm) < of.warm:
        warm += left.pop()
    most = max((len(some) for some in left), default=0)
    rest = [some[i] for i in range(most) for some in left if i < len(some)]
    cells = [Cell(name, 0, 0, tuple(warm[: of.warm]))]
    needed = repetitions * sum(map(of.num_sessions, clients))
    if len(rest) < needed:
        raise ConfigError(f"the trace {name} must have {needed} sessions of tasks that are not warm, got {len(rest)}")
    for repetition in range(repetitions):
        for number in clients:
            taken, rest = rest[: of.num_sessions(number)], rest[of.num_sessions(number) :]
            cells.append(Cell(name, number, repetition, tuple(taken)))
    return cells


def save_cells(path: Path, cells: Sequence[Cell]) -> None:
    """Writes all cells to one file."""
    path.write_text(json.dumps({"format": _FORMAT, "cells": [asdict(cell) for cell in cells]}), encoding="utf-8")


def load_cells(path: Path) -> list[Cell]:
    """What save_cells() wrote.

    Raises:
        ConfigError: The file does not exist or is of another kind.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']}")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} must be cells made by --prepare: {error}") from error
    return [Cell(**{**cell, "sessions": tuple(map(_conversation, cell["sessions"]))}) for cell in content["cells"]]


def _conversation(read: dict[str, Any]) -> Conversation:
    calls = tuple(FixedCall(**{**call, "answer": tuple(call["answer"])}) for call in read["calls"])
    return Conversation(read["session"], calls)
