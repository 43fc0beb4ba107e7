"""The sensitivity of the emulated figures: ratios of each setting, its table, its picture, and its goals."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from agentspec.evals.page import sensitivity
from agentspec.evals.page.page import topic_rows

TASKS = ("swe_mini_agent", "sql_rsl_bird")
BASE = {"none": 100.0, "suffix": 200.0, "eagle3-5": 250.0, "hybrid": 300.0}


def records(setting: str, speeds: dict[str, float], tasks: tuple[str, ...] = TASKS, **changes: Any) -> list[Any]:
    same = {"pass": "warm", "concurrency": 16, "emulated": "h200-8b", "head": "2.8", "factors": {}, **changes}
    return [
        {"task": task, "system": system, "tokens_per_second": speed, "setting": setting, **same}
        for task in tasks
        for system, speed in speeds.items()
    ]


@pytest.fixture
def files() -> dict[str, Any]:
    found = records("base", BASE)
    found += records("head-1.1", {"eagle3-5": 110.0, "hybrid": 190.0}, head="1.1")
    slow = {"emulated": "h200-8b-memory-x2", "factors": {"memory": 2.0}}
    found += records("h200-8b-memory-x2", {name: speed / 2 for name, speed in BASE.items()}, TASKS[:1], **slow)
    # A run that was stopped: the hybrid is missing.
    found += records("h200-32b", {"none": 30.0, "suffix": 50.0}, emulated="h200-32b")
    return {"sensitivity.json": {"base": {"emulated": "h200-8b", "head": "2.8"}, "records": found}}


def test_a_heads_cells_have_the_plain_decoding_and_the_suffix_drafts_of_their_device(files: dict[str, Any]) -> None:
    weak, base, slow = sensitivity.settings(files)
    assert base.cells["sql_rsl_bird"] == sensitivity.Cell(1.2, "eagle3-5", 3.0, 2.0)
    assert weak.cells["sql_rsl_bird"] == sensitivity.Cell(0.95, "suffix", 1.9, 2.0)
    assert list(slow.cells) == ["swe_mini_agent"] and slow.cells["swe_mini_agent"] == base.cells["swe_mini_agent"]


def test_the_table_has_what_was_measured(files: dict[str, Any]) -> None:
    text = sensitivity.block(files, {"light": "a.svg", "dark": "b.svg"})
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[3].startswith("| head 2.8, the base | 1.20 (EAGLE-3 with 5 steps) | 3.00 | 2.00 | 1.20 ")
    assert lines[2].startswith("| head 1.1 | 0.95 (suffix drafts) | 1.90 | 2.00 |")
    assert lines[4] == "| reading memory, twice as long | 1.20 (EAGLE-3 with 5 steps) | 3.00 | 2.00 |  |  |  |"
    assert len(lines) == 5 and 'srcset="b.svg"' in text


def test_the_worst_cell_of_all_settings_is_judged(files: dict[str, Any]) -> None:
    (row,) = topic_rows("emulated", files)
    assert row.goals == (
        ("least x the best single system 0.95, goal >= 0.99", False),
        ("least x plain 1.90, goal >= 1", True),
    )
    assert "5 cells in 3 settings" in row.workload


def test_the_picture_has_a_point_for_each_ratio(files: dict[str, Any]) -> None:
    drawn = sensitivity.svg(files, "light")
    assert drawn is not None
    points = [one for one in ElementTree.fromstring(drawn).iter() if one.tag.endswith("circle")]
    legend = 4
    assert len(points) == legend + 2 * 5


def test_nothing_is_drawn_before_something_is_measured() -> None:
    assert sensitivity.svg({}, "light") is None and sensitivity.block({}, {}) == "Not measured yet."
    assert topic_rows("emulated", {}) == []
