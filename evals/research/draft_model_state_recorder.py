"""An SGLang plugin for `agentspec bench drafter-state`: writes down what a head's drafts brought, place by place.

Loaded by the server's processes through an entry point that the bench makes; never part of an installation. Each line
of the file named by DRAFT_RECORDER_FILE is one draft of the head: the request, how many tokens its answer had, how many
of the draft were accepted. Under AGENTSPEC, DRAFT_RECORDER_EVERY says at which steps of a request the head drafts: at
every so many; all others are suffix drafts.
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
    """Follows how long each answer is."""

    def __init__(self, file: Path) -> None:
        self._file = file
        # The first token of an answer comes from the prefill.
        self._lengths: Counter[str] = Counter()

    def step(self, rids: Sequence[str], accepted: Sequence[int], drafted: Callable[[int], bool]) -> None:
        """One verify step: accepted tokens of each row, bonus tokens not counted; `drafted`: rows that the head
        drafted."""
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
        # agentspec's worker runs this method too, and its own drafts are recorded elsewhere.
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
