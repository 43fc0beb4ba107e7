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


def record(system: str, speed: float, repeat: int = 0, task: str = "text_to_sql", **changes: Any) -> dict[str, Any]:
    return {
        "task": task, "system": system, "pass": "warm", "concurrency": 8, "repeat": repeat, "requests": 9,
        "tokens_per_second": speed, "speedup_over_none": speed / 100, "speedup_over_ngram": speed / 150,
        "accept_length": 1.0 if system == "none" else 4.0, "hardware": {"processor": "P", "cores": 2}, **changes,
    }  # fmt: skip


def test_goals_that_were_missed_say_so(tmp_path: Path) -> None:
    ranking = {"goal": 0.9, "ranked": 3, "spearman_entropy_cold": 0.5, "spearman_entropy_100_cold": 0.4}
    write(tmp_path, "report/bench.json", {"ranking": ranking, "command": ["agentspec", "bench", "report"]})
    topic = read_topics(tmp_path)[0]
    text = summary([topic], {"report/bench.json": "1234567"})
    assert "Of the 1 goals that the evals set, 0 are met and 1 are missed." in text
    assert "3 sets and stages; report: correlation 0.50, goal >= 0.9" in text
    shown = table(topic, {"report/bench.json": "1234567"}, "../results")
    assert "correlation 0.50, goal >= 0.9: **missed**" in shown
    assert "| [`agentspec bench report`](../results/report/bench.json) | 1234567 |" in shown


def test_a_ratio_of_several_repeats_is_that_of_their_means_and_cells_are_judged_together() -> None:
    """A mean of ratios would count a slow repeat of the baseline twice."""
    speeds = {"none": (100.0, 100.0), "ngram": (100.0, 300.0), "suffix": (200.0, 300.0)}
    records = [record(system, speed, repeat) for system, some in speeds.items() for repeat, speed in enumerate(some)]
    records += [record(system, 100.0, concurrency=1) for system in speeds]
    row, alone, together = topic_rows("eval", {"agents.json": {"records": records}})
    assert row.figure == "250 (4.00) tokens/s: 2.50 x plain (2.00-3.00), 1.25 x NGRAM (1.33-2.00)"
    assert alone.figure == "100 (4.00) tokens/s: 1.00 x plain, 1.00 x NGRAM"
    assert together.goals == (("x plain 1.75, goal >= 2.5", False), ("x NGRAM 1.12, goal >= 1.3", False))


def test_on_an_emulated_gpu_the_best_rival_is_taken_at_its_best_width() -> None:
    speeds = {"none": 100.0, "ngram": 150.0, "ngram-32": 200.0, "suffix": 180.0, "suffix-64": 500.0, "hybrid": 190.0}
    records = [record(system, speed, task="chat", emulated="h200-8b") for system, speed in speeds.items()]
    (over_all,) = topic_rows("emulated", {"eval.json": {"records": records}})
    assert over_all.goals == (
        ("mean x the best single system 0.95, goal >= 1.1", False),
        ("least x the best single system 0.95, goal >= 0.99", False),
    )


def test_a_control_on_an_emulated_gpu_is_held_against_plain_decoding() -> None:
    speeds = {"none": 100.0, "eagle3-5": 150.0, "suffix": 97.0, "hybrid": 120.0}
    records = [record(system, speed, task="chat_mt_bench", emulated="h200-8b") for system, speed in speeds.items()]
    suffix, hybrid = topic_rows("emulated", {"controls.json": {"records": records}})
    assert suffix.goals == (("least x plain 0.97, goal >= 0.98", False),)
    assert hybrid.goals == (("least x plain 1.20, goal >= 0.98", True),)


def test_a_step_is_judged_where_it_is_worst() -> None:
    rows = [
        {"system": system, "rows": rows, "idle_share": idle, "python_ms": 1.0}
        for system, rows, idle in (("ngram", 1, 0.1), ("ngram", 16, 0.2), ("suffix", 1, 0.2), ("suffix", 16, 0.1))
    ]
    (row,) = topic_rows("emulated", {"step-cost.json": {"rows": rows}})
    assert row.goals == (("idle 20 %, goal <= 10 %", False),)


def test_halves_judge_how_many_intervals_held() -> None:
    state = {"held": 0.99, "reported": 3.98, "below": 0.11, "above": 0.12, "replayed": 4.0}
    rows = [{"set": "chat", "sessions": 80, "draws": 50, "cold": state, "warm": {**state, "held": 0.8}}]
    *_, together = topic_rows("report", {"halves.json": {"halves": {"goal": [0.8, 0.98], "rows": rows}}})
    assert together.goals == (("80% to 99% held, goal 80% to 98%", False),)


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
    agents, control, means, controls = topic_rows("curve", {"cold.json": {"rows": rows}})
    assert agents.figure.startswith("2.40 (12.0) / 2.40") and "ArcticInference 2.10 (11.0)" in agents.baseline
    assert control.figure.startswith("0.90 (9.0)")
    assert means.goals == (
        ("least x NGRAM 1.20, goal >= 1.12", True),
        ("least x ArcticInference 1.14, goal >= 1.2", False),
    )
    assert controls.goals == (("least x NGRAM and x ArcticInference 0.90, goal >= 1", False),)
