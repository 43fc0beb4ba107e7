"""The rows of a step: counts of their drafts, and rows without a draft."""

from __future__ import annotations

import numpy as np
import pytest
from draft_states import batch, drawn_rows

from agentspec import DraftBatch, Source
from agentspec.integrations.sglang.drafting.rows import DraftedStep
from agentspec.integrations.sglang.metrics import Counters

#   row 0:   2         row 1:   5 ── 6 ── 7         row 2:   8 ─┬─ 9
#                                                               └─ 1
DRAFTS = DraftBatch(
    offsets=np.array([0, 1, 4, 7], np.int32),
    tokens=np.array([2, 5, 6, 7, 8, 9, 1], np.int32),
    parents=np.array([-1, -1, 0, 1, -1, 0, 0], np.int32),
    estimates=np.array([1, 1, 0.9, 0.8, 1, 0.5, 0.4], np.float32),
    sources=np.array([0, 0, 1, 2, 0, 2, 1], np.uint8),
    match_lens=np.array([0, 4, 2], np.int32),
    scores=np.array([0, 1.7, 0.9], np.float32),
)


def drafted(*num_drafted: int) -> DraftedStep:
    return DraftedStep.of(DRAFTS, np.array(num_drafted, np.int32))


@pytest.mark.parametrize(
    ("num_drafted", "sources"),
    [
        ((0, 2, 2), [Source.ROOT, Source.REQUEST, Source.GLOBAL]),
        ((0, 0, 1), [Source.ROOT, Source.ROOT, Source.GLOBAL]),
        ((0, 0, 0), [Source.ROOT] * 3),
    ],
    ids=["all", "one row cut", "nothing"],
)
def test_a_row_counts_for_the_source_of_its_likeliest_token(num_drafted: tuple[int, ...], sources: list[int]) -> None:
    assert drafted(*num_drafted).sources.tolist() == sources


def test_rows_and_tokens_are_counted_by_source() -> None:
    counters = Counters()
    step = drafted(0, 2, 1)
    step.count_drafted(counters)
    step.count_accepted(counters, [0, 2, 0])
    counted = counters.snapshot()
    assert counted["by_source"] == {
        "steps": {"all": 1},
        "verify_steps": {"none": 1, "request": 1, "global": 1},
        "drafted_tokens": {"none": 0, "request": 2, "global": 1},
        "accepted_tokens": {"none": 0, "request": 2, "global": 0},
    }


def test_counts_by_source_add_up_to_what_was_drafted_and_accepted() -> None:
    rng = np.random.default_rng(0)
    counters = Counters()
    rows, num_drafted_tokens, num_accepted_tokens = 0, 0, 0
    for _ in range(50):
        drafts = batch(drawn_rows(rng, int(rng.integers(1, 6)), 5))
        kept = rng.integers(0, np.diff(drafts.offsets), dtype=np.int32)
        accepted = rng.integers(0, kept + 1)
        step = DraftedStep.of(drafts, kept)
        step.count_drafted(counters)
        step.count_accepted(counters, accepted.tolist())
        rows += len(drafts)
        num_drafted_tokens += int(kept.sum())
        num_accepted_tokens += int(accepted.sum())
    totals = counters.snapshot()
    assert (totals["steps"], totals["verify_steps"]) == (50, rows)
    assert (totals["drafted_tokens"], totals["accepted_tokens"]) == (num_drafted_tokens, num_accepted_tokens)
