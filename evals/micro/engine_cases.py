"""The cases of `agentspec bench engine`. Both sides take turns, so that both meet the same disturbances of the machine.

    insert      put a finished output into the global index, on the calling thread and with all threads
    draft_*     draft for a batch of requests in flight, and append what they accepted
    memory      bytes a token of the global index

Times are CPU time of the calling thread, medians, unless a case says otherwise. Less is better in every case, and a
ratio is the peer's figure over ours.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from agentspec.errors import ConfigError
from agentspec.evals.micro.engine_sides import Ours, Side, heap_bytes
from agentspec.evals.micro.texts import Request, Tokens

MAX_DRAFT_TOKENS = 16
BATCHES = (64, 16, 1)
# Steps of each batch, and accepted tokens of each step.
STEPS, ACCEPTED = 15, 3
# The other work of a step leaves a drafter little of the second-level cache.
_TOUCHED_BYTES = 16 << 20
# The sides take turns in building their global indexes, with this many turns from one size to the next.
_BLOCKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of both sides."""

    case: str
    size: str
    """Tokens in the global index."""
    peer: str
    ours: float
    theirs: float
    unit: str
    more: Mapping[str, Any] | None = None
    """Further values that help to read the figures."""

    def record(self) -> dict[str, Any]:
        return {
            "case": self.case,
            "size": self.size,
            "peer": self.peer,
            "ours": round(self.ours, 4),
            "theirs": round(self.theirs, 4),
            "ratio": round(self.theirs / self.ours, 3) if self.ours else None,
            "unit": self.unit,
            **(self.more or {}),
        }


def thread_us(work: Callable[[], Any]) -> float:
    """CPU time of the calling thread, in us."""
    started = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - started) / 1e3


@dataclass(slots=True)
class Inserts:
    """CPU time of inserting outputs, without their preparation."""

    tokens: int = 0
    calling_us: float = 0.0
    """Of the calling thread."""
    all_us: float = 0.0
    """Of all threads."""
    longest_us: float = 0.0
    """Of the calling thread, for one output."""

    def add(self, side: Side, outputs: Sequence[Tokens]) -> None:
        """Inserts the outputs and waits until they are indexed."""
        preparing = 0.0
        started = time.process_time_ns()
        for output in outputs:
            begun = time.thread_time_ns()
            insert = side.prepare(output)
            preparing += (time.thread_time_ns() - begun) / 1e3
            us = thread_us(insert)
            self.calling_us += us
            self.longest_us = max(self.longest_us, us)
            self.tokens += len(output)
        side.settle()
        self.all_us += (time.process_time_ns() - started) / 1e3 - preparing


class GlobalIndexes:
    """The sides' global indexes, grown from size to size with the same outputs."""

    def __init__(self, sides: Mapping[str, Side], outputs: Sequence[Tokens]) -> None:
        self.sides = sides
        self.num_outputs = self.num_tokens = 0
        self._outputs = outputs
        self.heap = dict.fromkeys(sides, 0)
        """Bytes that building each side left allocated."""

    def grow(self, num_tokens: int, progress: Callable[[int], None]) -> dict[str, Inserts]:
        """Inserts outputs up to `num_tokens`; gives the cost for each side."""
        block_tokens = -(-(num_tokens - self.num_tokens) // _BLOCKS)
        inserts = {name: Inserts() for name in self.sides}
        while self.num_tokens < num_tokens:
            block = self._next_block(min(block_tokens, num_tokens - self.num_tokens))
            for name, side in self.sides.items():
                before = heap_bytes()
                inserts[name].add(side, block)
                self.heap[name] += heap_bytes() - before
            self.num_tokens += sum(map(len, block))
            progress(self.num_tokens)
        return inserts

    def _next_block(self, num_tokens: int) -> list[Tokens]:
        block: list[Tokens] = []
        total = 0
        while total < num_tokens:
            if self.num_outputs == len(self._outputs):
                raise ConfigError(
                    f"{num_tokens} more output tokens are needed, only {total} are left; pass more traces in --tokens"
                )
            block.append(self._outputs[self.num_outputs])
            total += len(block[-1])
            self.num_outputs += 1
        return block


def insert_rows(inserts: Mapping[str, Inserts], size: str) -> Iterator[Row]:
    """What `GlobalIndexes.grow` measured from one size to the next.

    Our figure is that of `close`, which also frees the request. Arctic's is that of its global tree only, a whole
    output at once. NGRAM's is that of the hand-over to its insert thread, four tokens a step, plus the work of that
    thread.
    """
    ours = inserts["ours"]
    for name, theirs in inserts.items():
        if name != "ours":
            row = partial(Row, size=size, peer=name, unit="us a token")
            longest = {"ours_longest_us": round(ours.longest_us, 1), "theirs_longest_us": round(theirs.longest_us, 1)}
            yield row(
                case="insert",
                ours=ours.calling_us / ours.tokens,
                theirs=theirs.calling_us / theirs.tokens,
                more=longest,
            )
            yield row(case="insert_all_threads", ours=ours.all_us / ours.tokens, theirs=theirs.all_us / theirs.tokens)


def memory_rows(indexes: GlobalIndexes, size: str) -> Iterator[Row]:
    """Bytes a token of the global indexes: ours by the engine's own count (no allocator counts its mapped segments),
    the peers' by the allocator's."""
    ours = indexes.sides["ours"]
    assert isinstance(ours, Ours)
    stats = ours.engine.stats()
    for name, held in indexes.heap.items():
        if name != "ours":
            own, theirs = stats.global_bytes / max(stats.output_tokens, 1), held / indexes.num_tokens
            yield Row(case="memory", size=size, peer=name, ours=own, theirs=theirs, unit="bytes a token")


def draft_rows(sides: Mapping[str, Side], requests: Sequence[Request], size: str) -> Iterator[Row]:
    """Drafts of batches, with warm caches and after touching 16 MiB."""
    touched = np.zeros(_TOUCHED_BYTES // 8)
    for batch in BATCHES:
        for case, touch in (("hot", None), ("touched", touched)):
            figures = draft_batches(sides, requests, batch, touch)
            for name in sides:
                if name == "ours":
                    continue
                own, theirs = figures["ours"], figures[name]
                more = {"ours_drafted": own["drafted"], "theirs_drafted": theirs["drafted"]}
                row = partial(Row, size=size, peer=name, unit="us a request")
                at = f"bs{batch}_{case}"
                yield row(case=f"draft_{at}", ours=own["draft"], theirs=theirs["draft"], more=more)
                yield row(case=f"extend_{at}", ours=own["extend"], theirs=theirs["extend"])


def draft_batches(
    sides: Mapping[str, Side],
    requests: Sequence[Request],
    batch: int,
    touched: np.ndarray[Any, Any] | None,
) -> dict[str, dict[str, float]]:
    """Medians over steps of us a request, and the mean number of drafted tokens a request."""
    chosen = list(range(min(len(requests), max(batch, BATCHES[1]))))
    groups = [chosen[i : i + batch] for i in range(0, len(chosen), batch)]
    spent: dict[str, dict[str, list[float]]] = {name: {"draft": [], "extend": [], "drafted": []} for name in sides}
    for side in sides.values():
        for i in chosen:
            side.open(i, requests[i].prompt)
        side.extend(chosen, [requests[i].output[:1] for i in chosen])
        side.settle()
    for group in groups:
        for name, side in sides.items():
            # The steps of one side follow each other. Otherwise each would find the caches as another side left them.
            for step in range(STEPS):
                new = slice(1 + step * ACCEPTED, 1 + (step + 1) * ACCEPTED)
                _step(side, group, [requests[i].output[new] for i in group], touched, spent[name])
    for side in sides.values():
        for i in chosen:
            side.close(i)
        side.settle()
    return {
        name: {
            "draft": statistics.median(lists["draft"]),
            "extend": statistics.median(lists["extend"]),
            "drafted": round(statistics.mean(lists["drafted"]), 2),
        }
        for name, lists in spent.items()
    }


def _step(
    side: Side,
    group: Sequence[int],
    tokens: Sequence[Tokens],
    touched: np.ndarray[Any, Any] | None,
    spent: dict[str, list[float]],
) -> None:
    if touched is not None:
        np.add(touched, 1.0, out=touched)
    drafted: list[Any] = []
    spent["draft"].append(thread_us(lambda: drafted.append(side.draft(group, MAX_DRAFT_TOKENS))) / len(group))
    spent["drafted"].append(side.num_drafted(drafted[0]) / len(group))
    spent["extend"].append(thread_us(lambda: side.extend(group, tokens)) / len(group))
