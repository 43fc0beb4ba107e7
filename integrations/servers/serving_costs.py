"""Measures the time that serving takes besides verification, as clients see it, for `agentspec profile --serving`.

Metric: seconds of decode steps, of prefills and of a request outside the scheduler; see
agentspec.scheduling.costs.serving.
Pattern: differences only. The cost of steps is the extra time of long answers over short ones. The cost of a prefill is
the delay of a request that is streamed meanwhile. Medians are taken, because other work on the machine only adds time.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from agentspec.integrations.servers.server import RunningServer
from agentspec.scheduling import MeasuredPoint, ServingPoints, StepTotals

Steps = Sequence[tuple[int, int, int, float]]
"""(rows, width, context in tokens, seconds of the verification) of each decode step."""
# Tokens of the short and the long answers, and the least number of steps of a long one.
_SHORT, _LONG, _LONG_STEPS = 4, 44, 8
_STREAMED = 160
_STREAMED_PROMPT = 32
_PREFILL_ROUNDS = 7
# Pause between two prompts, some steps long.
_PAUSE_SECONDS = 0.03


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of a measurement: a batch of `rows` requests with prompts of `length` tokens each."""

    rows: int
    length: int


@dataclass(frozen=True, slots=True)
class _Asked:
    """A batch that was answered."""

    wall: float
    """Seconds."""
    steps: Steps


class ServingMeter:
    """Sends a server prompts of random token ids, which all differ."""

    def __init__(
        self,
        server: RunningServer,
        vocabulary: int,
        rng: random.Random,
        *,
        repeats: int = 5,
        width: int = 1,
    ) -> None:
        """`width`: maximum number of tokens that a step gives a row."""
        self._server = server
        self._vocabulary = vocabulary
        self._rng = rng
        self._repeats = repeats
        self._long = max(_LONG, _LONG_STEPS * width)

    def points(
        self, cells: Sequence[Cell], lengths: Sequence[int], told: Callable[[], Steps] | None = None
    ) -> ServingPoints:
        """Measures all points to which ServingCosts are fitted.

        Args:
            cells: Batches for the decode steps.
            lengths: Two or more prompt lengths, in tokens, for the prefills.
            told: Returns the decode steps since its last call, as the server reports them; None for a server that does
                not verify, where each step gives each row one token.
        """
        # The first steps pay for lazy set-up.
        self._ask(cells[0], _SHORT)
        prefills = self.prefills(lengths)
        alone = [self._alone(length) for length in lengths]
        state = self._server.get("/server_info")
        return ServingPoints(
            steps=self.steps(cells, told),
            prefills=tuple(prefills),
            alone=tuple(alone),
            overlap=not state.get("disable_overlap_schedule", True),
        )

    def steps(self, cells: Sequence[Cell], told: Callable[[], Steps] | None = None) -> tuple[StepTotals, ...]:
        """Measures for each cell the additional steps of the longer answers.

        Cells take turns, so that a change of the machine's speed affects all cells alike.
        """
        asked: dict[tuple[Cell, int], list[_Asked]] = defaultdict(list)
        for _ in range(self._repeats):
            for cell in cells:
                for tokens in (_SHORT, self._long):
                    asked[cell, tokens].append(self._timed(cell, tokens, told))
        return tuple(_more(cell, asked[cell, _SHORT], asked[cell, self._long]) for cell in cells)

    def prefills(self, lengths: Sequence[int]) -> list[MeasuredPoint]:
        """Measures for how long a prompt of each length delays another request."""
        found: dict[int, list[float]] = defaultdict(list)
        for _ in range(_PREFILL_ROUNDS):
            for length, seconds in self._held_up(lengths).items():
                found[length].append(seconds)
        return [MeasuredPoint(1, length, 0, statistics.median(found[length])) for length in lengths if found[length]]

    def _timed(self, cell: Cell, tokens: int, told: Callable[[], Steps] | None) -> _Asked:
        if told:
            told()
        wall = self._ask(cell, tokens)
        # All rows get their tokens at the same time; the first one comes from the prefill.
        steps = told() if told else [(cell.rows, 1, cell.rows * (cell.length + i), 0.0) for i in range(1, tokens)]
        return _Asked(wall, steps)

    def _held_up(self, lengths: Sequence[int]) -> dict[int, float]:
        """Sends one prompt of each length while another request is streamed."""
        times: list[float] = []
        body = {**self._body(1, _STREAMED_PROMPT, _STREAMED), "stream": True}
        first = threading.Event()

        def stream() -> None:
            for _ in self._server.stream("/generate", body):
                times.append(time.perf_counter())
                first.set()
            first.set()

        thread = threading.Thread(target=stream)
        thread.start()
        first.wait()
        windows = []
        for length in lengths:
            time.sleep(_PAUSE_SECONDS)
            began = time.perf_counter()
            self._server.post("/generate", self._body(1, length, 1))
            windows.append((length, began, time.perf_counter()))
        thread.join()
        return held_up(times, windows)

    def _alone(self, length: int) -> MeasuredPoint:
        seconds = statistics.median(self._ask(Cell(1, length), 1) for _ in range(_PREFILL_ROUNDS))
        return MeasuredPoint(1, length, 0, seconds)

    def _ask(self, cell: Cell, tokens: int) -> float:
        body = self._body(cell.rows, cell.length, tokens)
        began = time.perf_counter()
        self._server.post("/generate", body)
        return time.perf_counter() - began

    def _body(self, rows: int, length: int, tokens: int) -> dict[str, Any]:
        prompts = [[self._rng.randrange(self._vocabulary) for _ in range(length)] for _ in range(rows)]
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        return {"input_ids": prompts if rows > 1 else prompts[0], "sampling_params": sampling}


def _more(cell: Cell, short: Sequence[_Asked], long: Sequence[_Asked]) -> StepTotals:
    """The difference between the medians of long and of short answers."""

    def more(figure: Callable[[_Asked], float]) -> float:
        return statistics.median(map(figure, long)) - statistics.median(map(figure, short))

    wall = more(lambda asked: asked.wall)
    return StepTotals(
        rows=cell.rows,
        steps=round(more(lambda asked: len(asked.steps))),
        context=more(lambda asked: sum(context for _, _, context, _ in asked.steps)),
        batched=more(lambda asked: sum(rows * width for rows, width, _, _ in asked.steps)),
        wall=wall,
        outside=wall - more(lambda asked: sum(seconds for _, _, _, seconds in asked.steps)),
    )


def held_up(times: Sequence[float], windows: Sequence[tuple[int, float, float]]) -> dict[int, float]:
    """The total excess of the pauses in each window over the usual pause, in seconds, by prompt length.

    With the overlap scheduler tokens arrive one step late: the pause of the prefill contains no step and the next pause
    contains two, so only their sum gives the prefill's time. `times`: arrival times of tokens, in seconds. `windows`:
    (length, begin, end) of each prompt; windows after the last token are left out.
    """
    pauses = list(pairwise(times))
    free = [b - a for a, b in pauses if not any(a < end and b > begin for _, begin, end in windows)]
    usual = statistics.median(free or [b - a for a, b in pauses])
    found = {}
    for length, begin, end in windows:
        within = [b - a for a, b in pauses if a < end and b > begin]
        if within and times[-1] > end:
            found[length] = max(sum(within) - usual * len(within), 1e-6)
    return found
