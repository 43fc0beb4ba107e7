from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the plugin needs torch; `make setup` installs it")

from agentspec.draft_tree import Outcome
from agentspec.integrations.sglang.draftless import REASONS, DraftlessRows


def flags(*values: int) -> np.ndarray:
    return np.array(values, bool)


def test_each_row_without_a_draft_is_counted_once_by_its_reason() -> None:
    rows = DraftlessRows()
    rows.begin(6, "breaker")
    rows.set(1, "disabled_by_request")
    outcomes = np.array([Outcome.NO_MATCH, Outcome.NO_MATCH, Outcome.DRAFTED, Outcome.DRAFTED], np.uint8)
    rows.outcomes([2, 3, 4, 5], outcomes, [True, False, False, False])
    # Rows 4 and 5 had suffix drafts: of one the controller left nothing, of the other the policy.
    rows.count(drafted=flags(0, 0, 0, 0, 1, 0), verified=flags(0, 0, 0, 0, 0, 0))
    assert rows.counts.snapshot() == {
        "breaker": 1,
        "disabled_by_request": 1,
        "no_match_at_start": 1,
        "no_match": 1,
        "cut_by_controller": 1,
        "left_by_policy": 1,
    }


def test_rows_with_a_draft_are_not_counted() -> None:
    rows = DraftlessRows()
    for _ in range(3):
        rows.begin(2, "paused_by_controller")
        # A draft model drafted for both all the same.
        rows.count(drafted=flags(1, 1), verified=flags(1, 0))
    assert rows.counts.snapshot() == {"cut_by_controller": 3}


def test_every_outcome_of_the_engine_has_a_reason() -> None:
    rows = DraftlessRows()
    rows.begin(len(Outcome), "failed")
    rows.outcomes(list(range(len(Outcome))), np.array(list(Outcome), np.uint8), [False] * len(Outcome))
    none = np.zeros(len(Outcome), bool)
    rows.count(none, none)
    counted = rows.counts.snapshot()
    assert sum(counted.values()) == len(Outcome) and set(counted) < set(REASONS)
    assert counted["left_by_policy"] == 1, "DRAFTED alone is no reason of the engine's"
