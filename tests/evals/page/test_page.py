"""The pages of results: the committed pages are what the command makes, and say where their figures come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from agentspec.cli import main
from agentspec.errors import ConfigError
from agentspec.evals.page import readme_plot
from agentspec.evals.page.page import END, pages, read_commits, read_topics, summary, table, topic_rows, with_blocks

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


def test_the_page_of_results_is_short() -> None:
    assert len((RESULTS / "README.md").read_text(encoding="utf-8").splitlines()) < 80


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


def test_a_topic_that_nobody_knows_is_named_and_one_without_figures_too(tmp_path: Path) -> None:
    head = {
        "command": ["agentspec", "new"],
        "hardware": {"processor": "P", "cores": 3, "gpu": "G"},
        "versions": {"a": "1"},
    }
    write(tmp_path, "new/bench.json", {"head": head, "rows": []})
    (tmp_path / "empty").mkdir()
    topics = read_topics(tmp_path)
    text = summary(topics, read_commits(tmp_path))
    assert "| [new](new) | none set |  | P, 3 cores, G | not recorded |" in text
    assert "| [empty](empty) | none set |  |  | not measured yet |" in text
    assert "[bench.json](new/bench.json)" in text
    assert table(topics[0], {}, "..") == "Not measured yet."


def test_goals_that_were_missed_say_so(tmp_path: Path) -> None:
    goals = [
        {"name": "agents, 1 at a time: tokens/s over none", "value": 0.5, "target": ">= 1", "met": False},
        {"name": "agents, 1 at a time: tokens/s over fixed-15", "value": 1234.5, "target": ">= 1", "met": True},
        {"name": "open, 2 at a time: tokens/s over none", "value": None, "target": "<= 2", "met": False},
    ]
    measured = [
        {"workload": workload, "concurrency": number, "system": system, "tokens_per_second": 10.0}
        for workload, number in (("agents", 1), ("open", 2))
        for system in ("none", "agentspec")
    ]
    write(tmp_path, "load/bench.json", {"goals": goals, "rows": measured, "command": ["agentspec", "bench", "load"]})
    topic = read_topics(tmp_path)[0]
    assert [[(goal.text, goal.met) for goal in row.goals] for row in topic.rows] == [
        [("x plain 0.5, goal >= 1", False), ("x fixed 15 1234, goal >= 1", True)],
        [("x plain not reached, goal <= 2", False)],
    ]
    text = summary([topic], {"load/bench.json": "1234567"})
    assert "Of the 3 goals that the evals set, 1 are met and 2 are missed." in text
    assert "  - open prompts, 2 clients; suffix drafts, objective `run`: x plain not reached, goal <= 2" in text
    shown = table(topic, {"load/bench.json": "1234567"}, "../results")
    assert "x plain 0.5, goal >= 1: **missed**; x fixed 15 1234, goal >= 1: met" in shown
    assert "| [`agentspec bench load`](../results/load/bench.json) | 1234567 |" in shown


def record(system: str, speed: float, repeat: int = 0, task: str = "text_to_sql", **changes: Any) -> dict[str, Any]:
    return {
        "task": task, "system": system, "pass": "warm", "concurrency": 8, "repeat": repeat, "requests": 9,
        "tokens_per_second": speed, "speedup_over_none": speed / 100, "speedup_over_ngram": speed / 150,
        "accept_length": 1.0 if system == "none" else 4.0, "hardware": {"processor": "P", "cores": 2}, **changes,
    }  # fmt: skip


def test_a_ratio_of_several_repeats_is_that_of_their_means() -> None:
    """A mean of ratios would count a slow repeat of the baseline twice."""
    speeds = {"none": (100.0, 100.0), "ngram": (100.0, 300.0), "suffix": (200.0, 300.0)}
    records = [record(system, speed, repeat) for system, some in speeds.items() for repeat, speed in enumerate(some)]
    row = topic_rows("eval", {"agents.json": {"records": records}})[0]
    assert row.figure == "250 (4.00) tokens/s: 2.50 x plain (2.00-3.00), 1.25 x NGRAM (1.33-2.00)"
    assert [(goal.text, goal.met) for goal in row.goals] == [
        ("x plain 2.50, goal >= 2.5", True), ("x NGRAM 1.25, goal >= 1.3", False),
    ]  # fmt: skip


def test_the_hybrid_is_judged_by_the_latest_run_of_each_workload() -> None:
    def bench(*speeds: tuple[str, str, float], goals: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
        rows = [
            {"workload": workload, "system": system, "tokens_per_second": speed, "accept_length": 2.0, "requests": 9}
            for workload, system, speed in speeds
        ]
        return {"rows": rows, "goals": goals}

    goals = (
        {"name": "agents: tokens/s over eagle3-8", "value": 1.1, "target": ">= 0.99", "met": True},
        {"name": "agents-cold: tokens/s over suffix", "value": 9.0, "target": ">= 0.99", "met": True},
        {"name": "agents: steps with the drafter", "value": 0.8, "target": "<= 0.3", "met": False},
    )
    new = bench(("agents", "none", 50.0), ("agents", "eagle3-8", 100.0), ("agents", "hybrid", 110.0), goals=goals)
    old = bench(("agents", "suffix", 1.0), ("agents", "hybrid", 1.0), ("mix", "suffix", 10.0), ("mix", "hybrid", 9.0))
    agents, mix = topic_rows("hybrid", {"a-file-before-it.json": old, "bench.json": new})
    assert agents.figure == "110 (2.00) tokens/s: 1.10 x EAGLE-3 with 8 steps" and agents.file == "bench.json"
    assert [(goal.text, goal.met) for goal in agents.goals] == [
        ("x EAGLE-3 with 8 steps 1.1, goal >= 0.99", True),
        ("steps with the draft model 0.8, goal <= 0.3", False),
        ("x EAGLE-3 with 8 steps 1.10, goal >= 1.2", False),
    ]
    assert mix.figure == "9 (2.00) tokens/s: 0.90 x suffix drafts" and mix.file == "a-file-before-it.json"


def test_on_an_emulated_gpu_the_best_rival_is_taken_at_its_best_width() -> None:
    speeds = {"none": 100.0, "ngram": 150.0, "ngram-32": 200.0, "suffix": 180.0, "suffix-64": 500.0, "hybrid": 190.0}
    records = [
        record(system, speed, task="chat", emulated="h200-8b", device_busy=0.9 if system == "ngram" else 0.8)
        for system, speed in speeds.items()
    ]
    suffix, hybrid, over_all = topic_rows("emulated", {"eval.json": {"records": records}})
    assert suffix.figure == "180 (4.00) tokens/s: 0.90 x NGRAM with 32 tokens"
    assert suffix.goals == (("device busy 80.0%, goal >= NGRAM's 90.0%", False),)
    assert hybrid.goals == (("x the best single system 0.95, goal >= 0.99", False),)
    assert over_all.goals == (("mean x the best single system 0.95, goal >= 1.1", False),)


def test_a_control_on_an_emulated_gpu_is_held_against_plain_decoding() -> None:
    speeds = {"none": 100.0, "eagle3-5": 150.0, "suffix": 97.0, "hybrid": 120.0}
    records = [
        record(system, speed, task="chat_mt_bench", emulated="h200-8b", device_busy=0.9)
        for system, speed in speeds.items()
    ]
    suffix, hybrid = topic_rows("emulated", {"controls.json": {"records": records}})
    assert suffix.goals == (("x plain 0.97, goal >= 0.98", False),)
    assert hybrid.goals == (("x plain 1.20, goal >= 0.98", True),)


def test_replays_stand_beside_peers_at_their_best() -> None:
    rows = [
        {"set": "chat@:9", "pass": "cold", "system": system, "max_draft_tokens": number, "accepted_per_step": value,
         "drafted_per_step": 8.0, "setting": "defaults"}
        for system, number, value in (
            ("agentspec", 16, 3.0), ("agentspec", 32, 4.0), ("arctic", 16, 1.0), ("arctic", 16, 2.0), ("oracle", 16, 9.0),
        )
    ]  # fmt: skip
    row = topic_rows("text-to-sql", {"replay.json": {"rows": rows}})[0]
    assert (row.workload, row.figure, row.baseline) == ("chat@:9, cold", "3.00 (8.0)", "ArcticInference 2.00 (8.0)")


def test_halves_judge_how_many_intervals_held() -> None:
    state = {"held": 0.99, "reported": 3.98, "below": 0.11, "above": 0.12, "replayed": 4.0}
    rows = [{"set": "chat", "sessions": 80, "draws": 50, "cold": state, "warm": {**state, "held": 0.8}}]
    cold, warm = topic_rows("report", {"halves.json": {"halves": {"goal": [0.8, 0.98], "rows": rows}}})
    assert cold.goals == (("99% of 50 held, goal 80% to 98%", False),)
    assert warm.goals == (("80% of 50 held, goal 80% to 98%", True),)


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
    write(tmp_path, "hybrid/five-systems.json", json.loads((RESULTS / "hybrid" / "five-systems.json").read_text()))
    assert readme_plot.read(tmp_path).file == "hybrid/five-systems.json"


@pytest.mark.parametrize("theme", readme_plot.THEMES)
def test_the_picture_has_a_bar_for_each_system_and_workload(theme: str) -> None:
    plot = readme_plot.read(RESULTS)
    drawn = ElementTree.fromstring(plot.svg(theme))
    bars = [one for one in drawn if one.tag.endswith("rect") and one.get("width") == str(readme_plot._BAR)]
    assert len(bars) == 15
    heights = {round(ratio, 2) for some in plot.bars.values() for ratio in some.values()}
    assert {f"{height:.2f}" for height in heights} <= {one.text for one in drawn if one.tag.endswith("text")}


def test_sweeps_show_each_system_at_its_best_and_judge_the_means_of_agents() -> None:
    def swept(trace: str, system: str, *points: tuple[float, float]) -> list[dict[str, Any]]:
        return [
            {"set": trace, "pass": "cold", "system": system, "max_draft_tokens": nodes, "setting": f"{drafted:g}",
             "accepted_per_step": accepted, "drafted_per_step": drafted}
            for nodes in (16, 32, 64)
            for accepted, drafted in points
        ]  # fmt: skip

    rows = [
        *swept("agents", "agentspec", (2.0, 9.0), (2.4, 12.0)),
        *swept("agents", "ngram", (2.0, 16.0), (1.5, 16.0)),
        # The second setting drafts more than agentspec, and is left out.
        *swept("agents", "arctic", (2.1, 11.0), (2.3, 13.0)),
        *swept("math_gsm8k", "agentspec", (0.9, 9.0)),
        *swept("math_gsm8k", "ngram", (1.0, 16.0)),
        *swept("math_gsm8k", "arctic", (0.8, 8.0)),
    ]
    agents, control, means = topic_rows("curve", {"cold.json": {"rows": rows}})
    assert agents.figure.startswith("2.40 (12.0) / 2.40") and "ArcticInference 2.10 (11.0)" in agents.baseline
    assert [(goal.text, goal.met) for goal in control.goals[::3]] == [
        ("x NGRAM at 16 0.90, goal >= 1", False), ("x ArcticInference at 16 1.12, goal >= 1", True),
    ]  # fmt: skip
    assert [(goal.text, goal.met) for goal in means.goals[::3]] == [
        ("x NGRAM at 16 1.20, goal >= 1.12", True), ("x ArcticInference at 16 1.14, goal >= 1.2", False),
    ]  # fmt: skip
