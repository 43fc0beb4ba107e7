"""The rows of a decode step: where their drafts came from, and how many drafted tokens were accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from agentspec.drafts import DraftBatch, Source
from agentspec.integrations.sglang.metrics import Counters
from agentspec.integrations.sglang.sglang_types import Req

_SOURCE_LABELS = tuple(source.name.lower() if source is not Source.ROOT else "none" for source in Source)


@dataclass(frozen=True, slots=True)
class DraftedStep:
    """What was drafted in a step whose result is not processed yet, with one entry for each of b rows."""

    sources: NDArray[np.uint8]
    """[b], the `Source` of the likeliest token of each row's draft; ROOT if the row has no draft."""
    num_drafted: NDArray[np.int32]
    """[b], number of drafted tokens of each row, its root not counted."""

    @classmethod
    def of(cls, drafts: DraftBatch, num_drafted: NDArray[np.int32]) -> DraftedStep:
        """The record of a step that verifies the first num_drafted[i] nodes of row i, its root not counted."""
        return cls(drafts.sources[drafts.offsets[:-1] + (num_drafted > 0)], num_drafted)

    def count_drafted(self, counters: Counters) -> None:
        counters.add("steps", 1)
        rows = np.bincount(self.sources, minlength=len(_SOURCE_LABELS))
        self._add("verify_steps", rows, rows, counters)
        self._add("drafted_tokens", self._sums(self.num_drafted), rows, counters)

    def count_accepted(self, counters: Counters, num_accepted: Sequence[int]) -> None:
        """`num_accepted`: the number of accepted tokens of each row, bonus tokens not counted."""
        if len(num_accepted) == len(self.sources):
            rows = np.bincount(self.sources, minlength=len(_SOURCE_LABELS))
            self._add("accepted_tokens", self._sums(num_accepted), rows, counters)

    def _sums(self, values: Sequence[int] | NDArray[np.int32]) -> NDArray[Any]:
        return np.bincount(self.sources, weights=values, minlength=len(_SOURCE_LABELS))

    @staticmethod
    def _add(name: str, amounts: NDArray[Any], rows: NDArray[np.int64], counters: Counters) -> None:
        for source in np.flatnonzero(rows).tolist():
            counters.add(name, int(amounts[source]), _SOURCE_LABELS[source])


class TracedDrafts:
    """What was drafted for each request that SGLang traces (`--enable-trace`)."""

    def __init__(self) -> None:
        self._counts: WeakKeyDictionary[Req, Counter[str]] = WeakKeyDictionary()

    def add(self, requests: Sequence[Req], step: DraftedStep, num_accepted: Sequence[int]) -> None:
        """Adds a step whose result was processed, with one entry for each row."""
        rows = zip(requests, step.sources.tolist(), step.num_drafted.tolist(), num_accepted, strict=True)
        for request, source, drafted, accepted in rows:
            if request.time_stats.trace_ctx.tracing_enable:
                counts = self._counts.setdefault(request, Counter())
                label = _SOURCE_LABELS[source]
                counts[f"agentspec.verify_steps.{label}"] += 1
                if drafted:
                    counts[f"agentspec.drafted_tokens.{label}"] += drafted
                    counts[f"agentspec.accepted_tokens.{label}"] += accepted

    def end(self, request: Req) -> None:
        """Sets the counts of a request as attributes of its scheduler's span, which must still be open."""
        request.time_stats.trace_ctx.trace_set_thread_attrs(dict(self._counts.pop(request, ())))


def roots_only(roots: NDArray[np.int32]) -> DraftBatch:
    """A batch whose rows hold only their roots, int32[b]."""
    n = len(roots)
    return DraftBatch(
        offsets=np.arange(n + 1, dtype=np.int32),
        tokens=roots,
        parents=np.full(n, -1, np.int32),
        estimates=np.ones(n, np.float32),
        sources=np.full(n, int(Source.ROOT), np.uint8),
        match_lens=np.zeros(n, np.int32),
        scores=np.zeros(n, np.float32),
    )
