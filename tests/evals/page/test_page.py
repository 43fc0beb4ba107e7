"""The pages of results: the committed pages are what the command makes, and say where their figures come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentspec.cli import main
from agentspec.errors import ConfigError
from agentspec.evals.page import readme_plot
from agentspec.evals.page.page import END, pages, read_commits, read_topics, topic_rows, with_blocks

RESULTS = Path(__file__).parents[3] / "evals" / "results"
README = RESULTS.parents[1] / "README.md"
BENCHMARKS = README.parent / "docs" / "benchmarks.md"


def test_the_committed_pages_are_what_the_command_makes(capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--results", str(RESULTS), "--readme", str(README), "--benchmarks", str(BENCHMARKS)]
    assert main(["eval-page", "--check", *files]) == 0, f"{capsys.readouterr().out}; run agentspec eval-page"


def test_every_topic_is_in_the_benchmarks_and_every_file_is_somewhere() -> None:
    written = pages(RESULTS, README, BENCHMARKS)
    text = "".join(written.values())
    topics = [topic for topic in read_topics(RESULTS) if topic.name != "emulated"]
    assert all(f"<!-- results: {topic.name} -->" in written[BENCHMARKS] for topic in topics)
    files = [path.relative_to(RESULTS).as_posix() for path in RESULTS.glob("*/*.json")]
    assert files and all(f"{file})" in text for file in files)


def test_every_file_has_a_commit() -> None:
    commits = read_commits(RESULTS)
    assert commits and all(commits.values()), [name for name, commit in commits.items() if not commit]


def write(folder: Path, name: str, content: object) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content))


def test_a_commit_is_that_of_the_very_file_or_its_own_word(tmp_path: Path) -> None:
    write(tmp_path, "a/noted.json", {"head": {"command": ["agentspec"]}})
    write(tmp_path, "a/own.json", {"records": [{"versions": {"commit": "1234567890"}}]})
    write(tmp_path, "commits.json", {"a/noted.json": ["abcdefg", "no such digest"]})
    assert read_commits(tmp_path) == {"a/noted.json": "", "a/own.json": "1234567"}


def record(system: str, speed: float, repeat: int = 0, task: str = "text_to_sql", **changes: Any) -> dict[str, Any]:
    return {
        "task": task, "system": system, "pass": "warm", "concurrency": 8, "repeat": repeat, "requests": 9,
        "tokens_per_second": speed, "speedup_over_none": speed / 100, "speedup_over_ngram": speed / 150,
        "accept_length": 1.0 if system == "none" else 4.0, "hardware": {"processor": "P", "cores": 2}, **changes,
    }  # fmt: skip


def test_the_hybrid_is_judged_beside_suffix_drafts_too_and_cells_together() -> None:
    """A mean of ratios would count a slow repeat twice, and EAGLE-3 alone is often not the best single system."""
    speeds = {"none": (100.0, 100.0), "eagle3-5": (100.0, 300.0), "suffix": (250.0, 150.0), "hybrid": (200.0, 300.0)}
    records = [
        record(system, speed, repeat, "swe_mini_agent", emulated="h200-8b")
        for system, some in speeds.items()
        for repeat, speed in enumerate(some)
    ]
    records += [record(system, 300.0, task="sql_rsl_bird", emulated="h200-8b") for system in speeds]
    (row,) = topic_rows("emulated", {"a.json": {"records": records}})
    means = ("mean x the best single system 1.12, goal >= 1.1", True)
    assert row.goals == (means, ("least x the best single system 1.00, goal >= 0.99", True))
    (alone,) = topic_rows("emulated", {"a.json": {"records": [one for one in records if one["system"] != "suffix"]}})
    assert alone.figure == "1.00 to 1.25 x EAGLE-3, 1.12 in the mean" and not alone.goals


def test_blocks_go_between_their_marks_and_nowhere_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n<!-- results: a -->\nold\n{END}\nafter\n")
    once = with_blocks(page, {"a": "| \\1 |"})
    assert once == f"before\n<!-- results: a -->\n| \\1 |\n{END}\nafter\n"
    page.write_text(once)
    assert with_blocks(page, {"a": "| \\1 |"}) == once
    with pytest.raises(ConfigError, match="got a"):
        with_blocks(page, {"b": ""})
    page.write_text("no marks")
    with pytest.raises(ConfigError, match="marks"):
        with_blocks(page, {"b": ""})


def test_what_is_no_file_of_figures_is_refused(tmp_path: Path) -> None:
    assert main(["eval-page", "--results", str(tmp_path / "none"), "--readme", str(README)]) == 2
    write(tmp_path, "topic/bad.json", [1])
    with pytest.raises(ConfigError, match="bad.json"):
        read_topics(tmp_path)


def emulated(*systems: str) -> dict[str, Any]:
    """Records on three tasks, in which every system is twice as fast as the one before it."""
    return {
        "records": [
            record(system, 100.0 * 2**place, task=task, concurrency=16, emulated="h200-8b", device_busy=0.5)
            for task in ("swe_mini_agent", "sql_rsl_bird", "tools_tau_airline")
            for place, system in enumerate(systems)
        ]
    }


def test_the_plot_is_of_the_emulated_evaluation_once_that_has_every_system(tmp_path: Path) -> None:
    systems = ("none", "ngram", "ngram-32", "eagle3-5", "suffix", "hybrid")
    write(tmp_path, "emulated/eval.json", emulated(*systems))
    plot = readme_plot.read(tmp_path)
    assert plot.bars["coding agent (SWE-bench)"] == {"none": 1, "ngram": 4, "eagle3": 8, "suffix": 16, "hybrid": 32}
    assert len(plot.bars) == 3 and plot.file == "emulated/eval.json"
    caption = plot.caption({"emulated/eval.json": "1234567"})
    assert "an emulated H200 beside 2 cores of P" in caption and "n = 9 calls" in caption and "1234567" in caption
    assert "not quiet" not in caption
    content = emulated(*systems, "suffix-16")
    for one in content["records"]:
        one["preempted_share"] = {"hybrid": 0.57, "suffix-16": 0.9}.get(one["system"], 0.01)
    write(tmp_path, "emulated/eval.json", content)
    assert (
        "not quiet: other processes held the scheduler's core for up to 57% of a run" in readme_plot.read(tmp_path).note
    )
    write(tmp_path, "emulated/eval.json", emulated(*systems[:3], "suffix", "hybrid"))
    with pytest.raises(ConfigError, match="three workloads"):
        readme_plot.read(tmp_path)


def real(system: str, speed: float, pass_name: str = "warm", dtype: str = "bfloat16", **changes: Any) -> dict[str, Any]:
    changes = {"pass": pass_name, "concurrency": 1, "model": "m", "server_arguments": ["--dtype", dtype], **changes}
    return record(system, speed, task="qwen_sql_agents", **changes)


def test_a_real_models_hybrid_is_judged_beside_the_best_single_system_of_warm_cells() -> None:
    warm = [real("ngram", 8), real("ngram-64", 10), real("standalone-3", 5), real("suffix", 12)]
    warm.append(real("hybrid-standalone", 9))
    cold = [real("suffix", 1, "cold"), real("ngram", 8, "cold"), real("hybrid-standalone", 1, "cold")]
    rows = topic_rows("real", {"a.json": {"records": [*warm, *cold]}})
    goals = {row.system: goal for row in rows for goal in row.goals}
    assert goals == {
        "suffix drafts": ("mean x NGRAM 1.20, goal >= 1.1", True),
        "hybrid with STANDALONE": ("mean x the best single system 0.75, goal >= 1", False),
    }
    figures = [row.figure for row in rows if row.system == "hybrid with STANDALONE" and "warm" in row.workload]
    assert "0.90 x NGRAM, 1.80 x STANDALONE, 0.75 x the best single system" in figures[0]


@pytest.mark.parametrize("identical", [True, False])
def test_a_real_models_answers_in_float32_are_a_goal(identical: bool) -> None:
    cell = [real("none", 5, dtype="float32"), real("suffix", 12, dtype="float32", identical=identical)]
    rows = topic_rows("real", {"a.json": {"records": cell}})
    assert [goal.met for row in rows for goal in row.goals] == [identical]


def test_tool_calls_that_differ_are_missed() -> None:
    some = [real("none", 5), real("suffix", 12, answers_as_plain=9, calls_streamed_as_whole=8)]
    rows = topic_rows("real", {"a.json": {"records": [{**one, "task": "tool_calls"} for one in some]}})
    assert [goal.met for row in rows for goal in row.goals] == [False]
