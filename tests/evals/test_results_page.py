"""The page of results: what is committed is what the command makes, and what it makes says where figures are from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.cli import main
from agentspec.errors import ConfigError
from agentspec.evals.result_rows import offline, side_by_side, topic_rows
from agentspec.evals.results_page import BEGIN, END, page, read_topics, with_table

RESULTS = Path(__file__).parents[2] / "evals" / "results"
README = RESULTS.parents[1] / "README.md"


def test_the_committed_pages_are_what_the_command_makes(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["eval-page", "--check", "--results", str(RESULTS), "--readme", str(README)])
    assert status == 0, f"{capsys.readouterr().out}; run agentspec eval-page"


def test_every_recorded_file_is_on_the_page_with_its_command() -> None:
    topics = read_topics(RESULTS)
    text = page(topics)
    files = [path.relative_to(RESULTS) for path in RESULTS.glob("*/*.json")]
    assert files and all(f"({file})" in text for file in files)
    assert "``" not in text


def write(folder: Path, name: str, content: object) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content))


def test_a_topic_that_nobody_knows_is_named_and_one_without_figures_too(tmp_path: Path) -> None:
    head = {
        "command": ["agentspec", "new"],
        "hardware": {"processor": "P", "cores": 3, "gpu": "G"},
        "versions": {"a": "1"},
    }
    write(tmp_path, "new/bench.json", {"head": head, "rows": []})
    (tmp_path / "empty").mkdir()
    text = page(read_topics(tmp_path))
    assert "| see bench.json | recorded |  | [bench.json](new/bench.json) | P, 3 cores, G |" in text
    assert "`agentspec new` (a 1)" in text and "Not measured yet" in text


def test_goals_that_were_missed_say_so() -> None:
    goals = [
        {"name": "a", "value": 0.5, "target": ">= 1", "met": False},
        {"name": "b", "value": None, "target": "<= 2", "met": False},
        {"name": "c", "value": 1234.5, "target": ">= 1", "met": True},
    ]
    rows = topic_rows("load", {"bench.json": {"goals": goals}})
    assert [(row.measured, row.baseline) for row in rows] == [
        ("0.5", "goal >= 1, missed"), ("not reached", "goal <= 2, missed"), ("1234", "goal >= 1"),
    ]  # fmt: skip


def record(system: str, concurrency: int, speed: float, accept: float, pass_name: str = "cold") -> dict[str, object]:
    return {
        "task": "chat", "system": system, "pass": pass_name, "concurrency": concurrency, "repeat": 0,
        "tokens_per_second": speed, "speedup_over_none": speed, "accept_length": accept, "identical": True,
    }  # fmt: skip


def test_live_figures_stand_beside_offline_ones() -> None:
    records = [record(name, n, 2.0, 1.5 + n) for name in ("none", "ngram", "suffix") for n in (4, 1)]
    replayed = {
        "rows": [
            {"set": "chat@:9", "pass": "cold", "system": system, "max_draft_tokens": number, "accept_length": value}
            for system, number, value in (
                ("agentspec", 16, 3.0), ("agentspec", 32, 4.0), ("arctic", 16, 1.0), ("arctic", 16, 2.0), ("oracle", 16, 9.0),
            )
        ]
    }  # fmt: skip
    assert offline(replayed) == {"chat@:9, cold": {"agentspec": 3.0, "arctic": 2.0}}
    assert side_by_side(records, replayed) == [("chat, cold", "2.50", "-", "2.50", "3.00", "2.00", "")]
    rows = topic_rows("eval", {"bench.json": {"records": records}})
    assert rows[0][:3] == ("chat, cold, 1/4 at a time: suffix, tokens/s of plain", "2.00 / 2.00", "NGRAM 2.00 / 2.00")


def test_the_table_goes_between_its_marks_and_nowhere_else() -> None:
    readme = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = with_table(readme, "| \\1 |")
    assert once == f"before\n{BEGIN}\n| \\1 |\n{END}\nafter\n" and with_table(once, "| \\1 |") == once
    with pytest.raises(ConfigError, match="marks"):
        with_table("no marks", "")


def test_what_is_no_file_of_figures_is_refused(tmp_path: Path) -> None:
    assert main(["eval-page", "--results", str(tmp_path / "none"), "--readme", str(README)]) == 2
    write(tmp_path, "topic/bad.json", [1])
    with pytest.raises(ConfigError, match="bad.json"):
        read_topics(tmp_path)
