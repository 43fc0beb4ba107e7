"""What threads save in a draft's wall time, by the size of the global index: the cases `threads_*` of `agentspec bench
engine`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from agentspec.evals.micro.engine_cases import BATCHES, MAX_DRAFT_TOKENS, GlobalIndexes, Row, draft_batches
from agentspec.evals.micro.engine_sides import Ours, Side, engine
from agentspec.evals.micro.texts import Texts
from agentspec.progress import Progress

_TOUCHED_BYTES = 16 << 20
_ROUNDS = 5
_ALONE = "one thread"


def thread_rows(texts: Texts, sizes: Mapping[str, int], num_threads: int) -> Iterator[Row]:
    """Wall times of drafts on several threads, and on one, in turns, with warm caches and after touching 16 MiB.

    Each figure is the median of several rounds, each of which is a median over steps.
    """
    sides: dict[str, Side] = {"ours": Ours(engine(MAX_DRAFT_TOKENS, num_threads=num_threads))}
    sides[_ALONE] = Ours(engine(MAX_DRAFT_TOKENS))
    indexes = GlobalIndexes(sides, texts.outputs)
    touched = np.zeros(_TOUCHED_BYTES // 8)
    for label, size in sizes.items():
        with Progress(f"building {label}", size) as progress:
            indexes.grow(size, progress.update)
        for batch in BATCHES[:2]:
            for case, touch in (("hot", None), ("touched", touched)):
                rounds = [
                    draft_batches(sides, texts.requests, batch, touch, clock=time.perf_counter_ns)
                    for _ in range(_ROUNDS)
                ]
                yield Row(
                    case=f"threads_draft_bs{batch}_{case}",
                    size=label,
                    peer=_ALONE,
                    ours=_median(rounds, "ours"),
                    theirs=_median(rounds, _ALONE),
                    unit="us of wall time a request",
                    more={"threads": num_threads, "drafted": rounds[0]["ours"]["drafted"]},
                )


def _median(rounds: Sequence[Mapping[str, Mapping[str, float]]], side: str) -> float:
    return float(np.median([figures[side]["draft"] for figures in rounds]))
