"""The sensitivity of the emulated figures: settings, their commands, and the file that they are put together in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentspec.evals.emulated import sensitivity
from agentspec.evals.emulated.sensitivity import settings
from agentspec.integrations.emulated_device.models.step_times import SCALABLE, StepTimes


def test_every_head_and_every_part_of_the_step_times_is_varied() -> None:
    found = settings()
    assert found[0].name == "base" and len({one.name for one in found}) == len(found)
    assert {one.head for one in found} == set(sensitivity.HEADS)
    varied = {(part, factor) for one in found for part, factor in one.factors.items()}
    assert varied == {(part, factor) for part in SCALABLE for factor in (0.5, 2.0)}
    # Plain decoding and suffix drafts do not depend on the head, and are there for every device.
    assert all({"none", "suffix"} <= set(one.systems) for one in found if one.head == sensitivity.BASE_HEAD)
    assert all({"eagle3-5", "hybrid"} <= set(one.systems) for one in found)


def test_a_run_goes_on_and_keeps_the_commit_of_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def evaluated(words: list[str]) -> int:
        ran.append(words)
        path = Path(words[words.index("--json") + 1])
        if not path.exists():
            path.write_text(json.dumps({"settings": {}, "records": [{"task": "t", "system": "none"}]}))
        return 0

    monkeypatch.setattr(sensitivity, "agentspec", evaluated)
    out = tmp_path / "out.json"
    words = ["--data", str(tmp_path), "--work", str(tmp_path / "work"), "--json", str(out), "--settings"]
    monkeypatch.setattr(sensitivity, "commit", lambda: "first")
    assert sensitivity.main([*words, "base,h200-8b-memory-x2"]) == 0
    monkeypatch.setattr(sensitivity, "commit", lambda: "second")
    assert sensitivity.main([*words, "base,head-1.5"]) == 0
    content: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    assert [(one["setting"], one["commit"]) for one in content["records"]] == [
        ("base", "first"), ("head-1.5", "second"), ("h200-8b-memory-x2", "first"),
    ]  # fmt: skip
    assert content["base"] == {"emulated": "h200-8b", "head": "2.8"}
    assert content["records"][2]["factors"] == {"memory": 2.0}
    times = StepTimes.load(ran[1][ran[1].index("--emulate") + 1])
    assert times.name == "h200-8b-memory-x2" and all("--resume" in one for one in ran)
    assert ran[3][ran[3].index("--head") + 1] == "1.5" and "none" not in ran[3]
