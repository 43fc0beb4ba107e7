"""Finds the fastest draft length for each batch size by answering recorded prompts (Su et al., section 4).

Metric: seconds a generated token of whole decode steps, by batch size and width; accepted tokens a row by width.
Pattern: the server takes its widths in turn, step by step, so that all see the same text, caches and machine. Only steps
in which the whole batch still runs count. Batch sizes take turns too, because the server learns from its answers.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from agentspec.analysis.logs.source import LogReading, log_files, read_calls
from agentspec.errors import ConfigError
from agentspec.integrations.servers.server import RunningServer
from agentspec.integrations.servers.told_steps import told_since_then
from agentspec.progress import say
from agentspec.scheduling import table_of_speeds

_MOST_PROMPTS = 512
_MOST_ROUNDS = 12
_ENOUGH_STEPS = 24
"""A batch size is done once each width has this number of steps."""
_LEAST_STEPS = 6
_TOKENS = 96


@dataclass(frozen=True, slots=True)
class FastestLengths:
    """What the search found."""

    lengths: tuple[tuple[int, int], ...]
    """(batch size, fastest length), ascending."""
    accepted: tuple[float, ...]
    """l(1), l(2), ..., mean accepted tokens a row. Interpolated between the lengths that were measured."""


def recorded_prompts(path: Path) -> list[str]:
    """The prompts of the first calls of a log, or of all logs in a folder. Raises ConfigError if the path does not
    exist, or there are no prompts."""
    calls = read_calls(log_files([path]), LogReading())
    prompts = ("\n".join([*(text for _, text in call.messages), call.header]) for _, call in calls if call.has_prompt)
    found = list(islice(prompts, _MOST_PROMPTS))
    if not found:
        raise ConfigError(f"--calls must be a log that has prompts, got {path}; see `agentspec report --help`")
    return found


def fastest_lengths(
    server: RunningServer, prompts: Sequence[str], batch_sizes: Sequence[int], most_tokens: int
) -> FastestLengths:
    """Searches on a server with the controller "sweep" that tells its steps.

    Args:
        prompts: They are sent in this order, again and again.
        batch_sizes: Ascending.
        most_tokens: Longer prompts are cut at the left.

    Raises:
        ConfigError: No batch size had enough steps.
        ServerError: The server does not tell its steps.
    """
    told = told_since_then(server, "yields")
    tokenized = server.post("/tokenize", {"prompt": list(prompts)})["tokens"]
    ids = cycle([tokens[-most_tokens:] for tokens in tokenized])
    steps: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    left = list(batch_sizes)
    for _ in range(_MOST_ROUNDS):
        for rows in left:
            sampling = {"temperature": 0, "max_new_tokens": _TOKENS}
            server.post("/generate", {"input_ids": list(islice(ids, rows)), "sampling_params": sampling})
            for step_rows, width, seconds, tokens in told():
                if step_rows == rows:
                    steps[rows, width].append((seconds, int(tokens)))
        left = [rows for rows in left if _fewest(steps, rows) < _ENOUGH_STEPS]
    for rows in batch_sizes:
        if _fewest(steps, rows) < _LEAST_STEPS:
            say(f"  batch size {rows}: too few full batches, left out; record longer answers or more calls")
            for width in [width for size, width in steps if size == rows]:
                del steps[rows, width]
    if not steps:
        raise ConfigError("no batch size had enough full batches; pass a log with more calls, or smaller --batch-sizes")
    speeds = {
        # The median, because other work on the machine only adds time.
        (rows, width - 1): statistics.median(seconds for seconds, _ in found)
        / statistics.fmean(tokens for _, tokens in found)
        for (rows, width), found in steps.items()
    }
    for (rows, length), each in sorted(speeds.items()):
        say(f"  {rows} rows, {length} drafted: {1 / each:.0f} tokens/s")
    return FastestLengths(table_of_speeds(speeds).lengths, _accepted(steps))


def _fewest(steps: dict[tuple[int, int], list[tuple[float, int]]], rows: int) -> int:
    """The number of steps of the width that has the fewest."""
    return min((len(found) for (size, _), found in steps.items() if size == rows), default=0)


def _accepted(steps: dict[tuple[int, int], list[tuple[float, int]]]) -> tuple[float, ...]:
    totals: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for (rows, width), found in steps.items():
        totals[width - 1][0] += sum(tokens for _, tokens in found) - rows * len(found)
        totals[width - 1][1] += rows * len(found)
    lengths = sorted(totals)
    means = [totals[length][0] / totals[length][1] for length in lengths]
    return tuple(np.interp(np.arange(1, lengths[-1] + 1), lengths, means).tolist())
