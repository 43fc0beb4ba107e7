"""The bench of drafts on several threads, on small texts."""

from __future__ import annotations

import numpy as np
from engine_texts import random_output

from agentspec.evals.micro.engine_cases import ACCEPTED, STEPS
from agentspec.evals.micro.engine_threads import thread_rows
from agentspec.evals.micro.texts import Request, Texts


def test_drafts_on_two_threads_stand_beside_those_on_one() -> None:
    rng = np.random.default_rng(0)
    outputs = [random_output(rng, 300) for _ in range(8)]
    requests = [Request(random_output(rng, 100), output[: 1 + STEPS * ACCEPTED]) for output in outputs]
    rows = list(thread_rows(Texts(outputs, requests, {}), {"1k": 1000, "2k": 2000}, 2))
    assert [(row.case, row.size) for row in rows] == [
        (f"threads_draft_bs{batch}_{case}", size)
        for size in ("1k", "2k")
        for batch in (64, 16)
        for case in ("hot", "touched")
    ]
    for row in rows:
        assert row.ours > 0 and row.theirs > 0 and row.more is not None
        assert row.more["threads"] == 2 and row.more["drafted"] > 0
