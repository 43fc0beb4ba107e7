"""The rows of a step: counts of their drafts, rows without a draft by the reason, and the breaker."""

from __future__ import annotations

import numpy as np
import pytest
from draft_states import batch, drawn_rows

from agentspec import DraftBatch, Source
from agentspec.drafts import Outcome
from agentspec.integrations.sglang.drafting.breaker import Breaker
from agentspec.integrations.sglang.drafting.draftless import REASONS, DraftlessRows, Reason
from agentspec.integrations.sglang.drafting.rows import DraftedStep
from agentspec.integrations.sglang.metrics import Counters

pytest.importorskip("torch", reason="the plugin needs torch; `make setup` installs it")


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


def test_what_was_accepted_of_other_rows_is_not_counted() -> None:
    counters = Counters()
    drafted(0, 2, 1).count_accepted(counters, [1, 1])
    assert counters.total("accepted_tokens") == 0


def test_opens_after_failures_in_a_row_and_tries_again_after_the_pause() -> None:
    breaker = Breaker(max_failures=2, pause_steps=3)
    for outcome in (breaker.failed, breaker.succeeded, breaker.failed):
        assert breaker.allow()
        outcome()
    assert not breaker.is_open, "a success in between starts the count anew"

    breaker.failed()

    assert [breaker.allow() for _ in range(4)] == [False, False, False, True]
    breaker.failed()
    assert breaker.is_open, "one failure after the pause is enough"
    assert breaker.num_openings == 2
    for _ in range(3):
        breaker.allow()
    assert breaker.allow()
    breaker.succeeded()
    breaker.failed()
    assert not breaker.is_open, "after a success it takes the full number again"


def flags(*values: int) -> np.ndarray:
    return np.array(values, bool)


def outcomes(*values: Outcome) -> np.ndarray:
    return np.array(values, np.uint8)


def test_each_row_without_a_draft_is_counted_once_by_its_reason() -> None:
    rows = DraftlessRows()
    says: dict[int, Reason] = {0: "disabled_by_request", 1: "no_match_at_start"}
    found = outcomes(Outcome.NO_ROOM, Outcome.NO_MATCH, Outcome.NO_MATCH, Outcome.DRAFTED, Outcome.DRAFTED)
    # Rows 3 and 4 had suffix drafts. The controller cut one of them, and the policy left the other one out.
    rows.count(found, flags(0, 0, 0, 1, 0), flags(0, 0, 0, 0, 0), lambda row, outcome: says.get(row))
    assert rows.counts.snapshot() == {
        "disabled_by_request": 1,
        "no_match_at_start": 1,
        "no_match": 1,
        "cut_by_controller": 1,
        "left_by_policy": 1,
    }


@pytest.mark.parametrize("reason", ["breaker", "failed"])
def test_one_reason_may_hold_for_all_rows_of_a_step(reason: Reason) -> None:
    rows = DraftlessRows()
    # A draft model drafted for the last two rows nevertheless. The controller cut one of these drafts to nothing.
    rows.count(reason, flags(0, 0, 1, 1), flags(0, 0, 0, 1))
    assert rows.counts.snapshot() == {reason: 2, "cut_by_controller": 1}


def test_every_outcome_of_the_engine_has_a_reason() -> None:
    rows = DraftlessRows()
    none = np.zeros(len(Outcome), bool)
    rows.count(outcomes(*Outcome), none, none)
    counted = rows.counts.snapshot()
    assert sum(counted.values()) == len(Outcome) and set(counted) < set(REASONS)
    assert counted["left_by_policy"] == 1, "DRAFTED alone is no reason of the engine's"


def test_only_rows_that_something_else_may_have_left_without_are_asked_about() -> None:
    rows = DraftlessRows()
    asked: list[tuple[int, Outcome]] = []
    verified = np.array([outcome == Outcome.NO_ROOM for outcome in Outcome] + [False])
    found = outcomes(*Outcome, Outcome.NO_ROOM)

    def refine(row: int, outcome: Outcome) -> None:
        asked.append((row, outcome))

    rows.count(found, np.zeros_like(verified), verified, refine)
    assert asked == [
        (int(Outcome.NO_MATCH), Outcome.NO_MATCH),
        (int(Outcome.NOT_OPEN), Outcome.NOT_OPEN),
        (len(Outcome), Outcome.NO_ROOM),
    ]
