"""An SGLang plugin for `agentspec bench drafter-state`: records what a head's drafts gained, position by position.

The server's processes load it through an entry point that the bench makes; it is never part of an installation. Each
line of the file named by DRAFT_RECORDER_FILE is one draft of the head: the request, the number of tokens of its answer
so far, and the number of accepted tokens. Under AGENTSPEC, the head drafts at every DRAFT_RECORDER_EVERY-th step of a
request; all other steps have suffix drafts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def register() -> None:
    """Called by SGLang in each of its processes."""
    file, every = Path(os.environ["DRAFT_RECORDER_FILE"]), int(os.environ["DRAFT_RECORDER_EVERY"])
    record = Recorder(file)
    _record_sglang(record)
    _record_agentspec(record, every)


class Recorder:
    """Tracks the length of each answer."""

    def __init__(self, file: Path) -> None:
        self._file = file
        # The first token of an answer comes from the prefill.
        self._lengths: Counter[str] = Counter()

    def step(self, rids: Sequence[str], accepted: Sequence[int], drafted: Callable[[int], bool]) -> None:
        """Records one verify step.

        Args:
            rids: The request of each row.
            accepted: Accepted tokens of each row, without bonus tokens.
            drafted: Whether the head drafted a row.
        """
        lines = []
        for row, (rid, n) in enumerate(zip(rids, accepted, strict=True)):
            if drafted(row):
                lines.append(json.dumps({"rid": rid, "place": self._lengths[rid] + 1, "accepted": int(n)}) + "\n")
            self._lengths[rid] += int(n) + 1
        with self._file.open("a", encoding="utf-8") as out:
            out.writelines(lines)


def _record_sglang(record: Recorder) -> None:
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

    forward = EAGLEWorkerV2.forward_batch_generation

    def recorded(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        # agentspec's worker runs this method too, but its drafts are recorded elsewhere.
        decodes = batch.forward_mode.is_decode() and not hasattr(self, "suffix")
        rids = [request.rid for request in batch.reqs]
        result = forward(self, batch, *args, **kwargs)
        if decodes:
            record.step(rids, (result.accept_lens - 1).tolist(), lambda row: True)
        return result

    EAGLEWorkerV2.forward_batch_generation = recorded


def _record_agentspec(record: Recorder, every: int) -> None:
    from agentspec.scheduling.hybrid import Choice, HybridPolicy

    observe = HybridPolicy.observe
    steps: Counter[str] = Counter()

    def chosen(self: Any, request_ids: Sequence[str], suffix: Any, fit: Any, **rest: Any) -> Choice:
        del self, suffix, rest
        steps.update(request_ids)
        return Choice(fit & np.array([steps[rid] % every == 0 for rid in request_ids]), float("inf"))

    def observed(self: Any, request_ids: Sequence[str], drafts: Any, num_accepted: Any, accepted: Any) -> None:
        record.step(request_ids, num_accepted.tolist(), drafts.ran.tolist().__getitem__)
        observe(self, request_ids, drafts, num_accepted, accepted)

    HybridPolicy.choose, HybridPolicy.observe = chosen, observed  # type: ignore[method-assign]
