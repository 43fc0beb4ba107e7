"""The page on what the gains depend on: ratios of each setting, the table, the picture, and the goals."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from agentspec.evals.page import sensitivity
from agentspec.evals.page.page import topic_rows

TASKS = ("sql_rsl_bird", "math_gsm8k")
BASE = {"none": 100.0, "suffix": 200.0, "eagle3-3": 180.0, "eagle3-5": 250.0, "hybrid-5": 300.0}


def records(setting: str, speeds: dict[str, float], tasks: tuple[str, ...] = TASKS, **changes: Any) -> list[Any]:
    same = {"clients": 16, "emulated": "h200-8b", "head": "2.8", "factors": {}, **changes}
    return [
        {"task": task, "system": system, "tokens_per_second": speed, "accept_length": 2.5, "setting": setting, **same}
        for task in tasks
        for system, speed in speeds.items()
    ]


@pytest.fixture
def files() -> dict[str, Any]:
    found = records("base", BASE) + records("base", BASE, TASKS[:1], clients=1)
    found += records("head-1.1", {"eagle3-3": 120.0, "eagle3-5": 110.0, "hybrid-3": 190.0}, head="1.1")
    slow = {"emulated": "h200-8b", "factors": {"memory": 2.0}}
    found += records("memory-x2", {name: speed / 2 for name, speed in BASE.items()}, TASKS[:1], **slow)
    return {"sensitivity.json": {"base": {"emulated": "h200-8b", "head": "2.8"}, "records": found}}


def test_a_heads_cells_have_the_plain_decoding_and_the_suffix_drafts_of_the_base(files: dict[str, Any]) -> None:
    weak, base, slow = sensitivity.settings(files)
    assert [(cell.is_control, cell.clients) for cell in base.cells] == [(False, 16), (True, 16), (False, 1)]
    assert base.cells[0] == sensitivity.Cell(False, 16, 1.2, 3.0, 2.0)
    assert weak.cells == [sensitivity.Cell(control, 16, 0.95, 1.9, 2.0) for control in (False, True)]
    assert slow.cells == base.cells[:1]


def test_the_table_has_what_was_measured(files: dict[str, Any]) -> None:
    text = sensitivity.block(files, {"light": "a.svg", "dark": "b.svg"})
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[2].startswith("| head 1.1 | 0.95 (0.95 to 0.95) | – / 1.90 | – / 2.00 | 0.95 (0.95 to 0.95) |")
    assert lines[3].startswith("| head 2.8, the base | 1.20 (1.20 to 1.20) | 3.00 / 3.00 |")
    assert lines[4].startswith("| reading memory takes twice as long | 1.20 ")
    assert lines[5].startswith("| task | clients | plain, tokens/s | NGRAM | EAGLE-3 | ")
    cell = "100 |  | 2.50 (2.50, 5) | 2.00 (2.50) | 3.00 (2.50, 5) | 1.20 |"
    assert lines[7:] == [f"| sql_rsl_bird | 16 | {cell}", f"| math_gsm8k | 16 | {cell}", f"| sql_rsl_bird | 1 | {cell}"]
    assert 'srcset="b.svg"' in text


def test_a_rival_of_the_base_alone_is_not_compared_with_another_device(files: dict[str, Any]) -> None:
    files["sensitivity.json"]["records"] += records("base", {"ngram-12": 400.0}, TASKS[:1])
    weak, base, slow = sensitivity.settings(files)
    ratios = [[cell.over_single for cell in one.cells if cell == one.cells[0]] for one in (weak, base, slow)]
    assert ratios == [[190 / 400], [0.75], [1.2]]


def test_the_worst_cell_of_all_settings_is_judged(files: dict[str, Any]) -> None:
    agents, controls = topic_rows("emulated", files)
    assert agents.goals == (
        ("least x the best single system 0.95, goal >= 0.99", False),
        ("mean x the best single system 1.14, goal >= 1", True),
        ("least x plain 1.90, goal >= 1", True),
    )
    assert "4 cells in 3 settings" in agents.workload and "below 0.99 in 1" in agents.figure
    assert "2 cells" in controls.workload


def test_the_picture_has_a_point_for_each_setting_and_kind_of_task(files: dict[str, Any]) -> None:
    drawn = sensitivity.svg(files, "light")
    assert drawn is not None
    points = [one for one in ElementTree.fromstring(drawn).iter() if one.tag.endswith("circle")]
    legend = 2
    assert len(points) == legend + 5


def test_nothing_is_drawn_before_something_is_measured() -> None:
    assert sensitivity.svg({}, "light") is None and sensitivity.block({}, {}) == "Not measured yet."
    assert topic_rows("emulated", {}) == []
