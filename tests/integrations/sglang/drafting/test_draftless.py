"""Rows without a draft are counted once each, by the reason."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the plugin needs torch; `make setup` installs it")

from agentspec.drafts import Outcome
from agentspec.integrations.sglang.drafting.draftless import REASONS, DraftlessRows, Reason


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
