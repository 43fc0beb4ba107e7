from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.cli import main
from agentspec.errors import ServerError
from agentspec.evals.research.draft_model_state import compared, shown
from agentspec.evals.research.draft_model_state_recorder import Recorder


def test_drafts_are_noted_with_their_places(tmp_path: Path) -> None:
    record = Recorder(tmp_path / "drafts.jsonl")
    record.step(["a", "b"], [2, 0], lambda row: row == 0)
    record.step(["b", "a"], [1, 3], lambda row: True)
    lines = [json.loads(line) for line in (tmp_path / "drafts.jsonl").read_text().splitlines()]
    # The first token of an answer comes from the prefill, and each step adds one beyond what it accepts.
    assert lines == [
        {"rid": "a", "place": 1, "accepted": 2},
        {"rid": "b", "place": 2, "accepted": 1},
        {"rid": "a", "place": 4, "accepted": 3},
    ]


def test_only_places_that_both_drafted_for_are_compared() -> None:
    row = compared({("a", 1): 4, ("a", 6): 2, ("b", 1): 0}, {("a", 1): 4, ("a", 6): 1, ("a", 8): 3})
    assert row == {"drafts": 3, "places": 2, "sglang_accepted": 3.0, "agentspec_accepted": 2.5, "equal": 0.5}
    assert "2 places, accepted 2.500 (SGLang's EAGLE-3 there 3.000)" in shown({"every": 2, **row})
    with pytest.raises(ServerError, match="same positions"):
        compared({("a", 1): 4}, {("a", 2): 4})


@pytest.mark.sglang
@pytest.mark.server
def test_a_head_drafts_after_suffix_steps_as_if_it_had_read_them(tmp_path: Path) -> None:
    out = tmp_path / "state.json"
    status = main(["bench", "drafter-state", "--requests", "6", "--every", "3", "--json", str(out)])
    report = json.loads(out.read_text())
    assert status == 0 and report["identical"]
    [row] = report["rows"]
    assert row["places"] >= 5
    assert row["equal"] >= 0.9
    assert str(tmp_path) not in out.read_text()
