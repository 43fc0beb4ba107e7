"""The bench of drafts with corpora, on small ones."""

from __future__ import annotations

import numpy as np
from engine_texts import random_output

from agentspec.evals.micro.engine_cases import ACCEPTED, STEPS
from agentspec.evals.micro.engine_corpus import corpus_rows
from agentspec.evals.micro.texts import Request


def test_a_corpus_adds_drafts_and_time() -> None:
    rng = np.random.default_rng(0)
    documents = [random_output(rng, 300) for _ in range(4)]
    requests = [
        Request(random_output(rng, 100), np.concatenate([document[: 1 + STEPS * ACCEPTED]])) for document in documents
    ]
    rows = list(corpus_rows(documents, requests, {"1k": 1000, "5k": 5000}))
    assert [(row.case, row.size) for row in rows] == [
        (f"corpus_draft_bs{batch}", size) for size in ("1k", "5k") for batch in (64, 1)
    ]
    for row in rows:
        assert row.ours > 0 and row.theirs > 0 and row.more is not None
        assert row.more["ours_drafted"] > row.more["theirs_drafted"]
    sizes = {row.size: row.more["megabytes"] for row in rows if row.more}
    assert sizes["5k"] > 3 * sizes["1k"]
