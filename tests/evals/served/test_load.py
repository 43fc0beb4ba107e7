"""The load bench's work, rows, goals and tables; and one tiny run of real servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentspec.cli import main
from agentspec.evals.run.phases import SliceResult, TimedCall
from agentspec.evals.served.load import rows_of
from agentspec.evals.served.load_rows import best_fixed, find, goals, load_row, markdown, plot, ratio
from agentspec.evals.workloads.load import DEFAULT_SYSTEMS, plan_load


def turn(
    seconds: float, *, tokens: int = 11, steps: int = 5, row: str = "open@2", text: str = "a", verified: int = 20
) -> SliceResult:
    """A turn of two concurrent calls."""
    calls = tuple(TimedCall("open", 0.0, seconds, tokens, steps) for _ in range(2))
    return SliceResult(row, 0, calls, ([text],), steps=5, drafter_steps=0, verified_tokens=verified, cpu_seconds=2.0)


def row(workload: str, system: str, *seconds: float, concurrency: int = 2) -> dict[str, Any]:
    return load_row(workload, system, concurrency, [turn(s) for s in seconds], identical=True)


def test_every_client_has_work_in_every_turn_and_nothing_twice(databases: Any) -> None:
    for workload in ("open", "agents"):
        phases = plan_load(workload, databases, (1, 8), 12, 2, seed=1)
        streams = [phase.streams[0] for phase in phases]
        asked = [(q.database, q.text) for s in streams for q in s.questions] + [
            p[-1]["content"] for s in streams for p in s.prompts
        ]
        assert len(set(asked)) == len(asked)
        rows = [phase.row for phase in phases if phase.row]
        assert rows == [f"{workload}@1"] * 2 + [f"{workload}@8"] * 2
        # What is learned from agents is kept, and what is learned from open prompts is not.
        assert [phase.flush for phase in phases] == (
            [True, False, True, False] if workload == "open" else [True, False, False, False, False]
        )
        for stream in streams:
            assert len(stream.questions or stream.prompts) >= stream.concurrency
    assert plan_load("open", databases, (2,), 8, 2, seed=1) == plan_load("open", databases, (2,), 8, 2, seed=1)


def test_a_row_is_all_its_turns_together() -> None:
    found = load_row("open", "agentspec", 2, [turn(1.0), turn(3.0)], identical=True)
    assert found["tokens_per_second"] == 44 / 4 and found["tokens_per_second_turns"] == [22.0, 7.3]
    assert found["tokens_per_cpu_second"] == 44 / 4
    # The first token of each call comes from its prefill.
    assert found["accept_length"] == 2.0 and found["verified_width"] == 2.0
    assert load_row("open", "none", 2, [turn(1.0, verified=0)], identical=None)["verified_width"] == 1.0


def test_a_ratio_is_the_median_turn_s() -> None:
    # A turn that was disturbed counts no more than any other.
    assert ratio(row("open", "agentspec", 1, 2, 9), row("open", "none", 2, 4, 3)) == 2.0


def test_goals_are_over_plain_and_on_agents_over_the_best_fixed_length() -> None:
    rows = [
        row("open", "none", 1.0), row("open", "agentspec", 1.01), row("open", "fixed-3", 0.5),
        row("agents", "none", 2.0), row("agents", "agentspec", 1.0),
        row("agents", "fixed-3", 0.8), row("agents", "fixed-7", 1.5),
    ]  # fmt: skip
    found = {goal.name: (goal.value, goal.is_met) for goal in goals(rows)}
    assert found == {
        "open, 2 at a time: tokens/s over none": (pytest.approx(0.99, abs=2e-3), True),
        "agents, 2 at a time: tokens/s over none": (pytest.approx(2.0, abs=2e-3), True),
        "agents, 2 at a time: tokens/s over fixed-3": (pytest.approx(0.8, abs=2e-3), False),
    }
    assert best_fixed(find(rows, "agents", 2)) == "fixed-3"


def test_rows_of_a_server_that_failed_hold_the_error() -> None:
    done = {
        "none": [turn(1.0, text=text) for text in "ab"],
        "agentspec": [turn(1.0, text=text) for text in "ax"],
        "fixed-3": [turn(1.0, text="a")],
    }
    plain, ours, fixed = rows_of("open", tuple(done), (2,), 2, done, {"fixed-3": "it fell over"})
    assert plain["identical"] is True and ours["identical"] is False
    assert fixed["tokens_per_second"] is None and fixed["error"] == "it fell over"
    assert "| 2 | fixed-3 | failed: it fell over |" in markdown([plain, ours, fixed], command="bench")


def test_the_table_and_the_picture(tmp_path: Path) -> None:
    rows = [row("open", name, 1.0, concurrency=n) for n in (1, 16) for name in ("none", "agentspec")]
    assert markdown(rows, command="agentspec bench load").count("| met |") == 2
    plot(rows, tmp_path / "a.svg")
    plot(rows, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_what_was_measured_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    rows = [row(workload, name, 1.0) for workload in ("open", "agents") for name in DEFAULT_SYSTEMS]
    out.write_text(json.dumps({"rows": rows}))
    assert main(["bench", "load", "--resume", "--json", str(out)]) == 0


@pytest.mark.sglang
@pytest.mark.server
def test_a_tiny_run(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["--systems", "agentspec", "--workloads", "open", "--requests", "2", "--turns", "1", "--concurrency", "2"]
    main(["bench", "load", *words, "--json", str(out)])
    report = json.loads(out.read_text())
    assert [row["system"] for row in report["rows"]] == ["none", "agentspec"]
    assert all(row["identical"] and row["tokens_per_second"] > 0 for row in report["rows"])
    assert str(tmp_path) not in out.read_text()
