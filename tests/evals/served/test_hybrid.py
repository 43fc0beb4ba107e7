"""The hybrid bench's work, arithmetic and tables; and one tiny run of real servers.

Most tests use these four calls, which overlap as follows:

    seconds   0    1    2    3    4
    agents    [ 9 tokens ][ 5 ]             2 + 2 steps
    open      [   17 tokens   ][   9   ]    8 + 8 steps
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pytest
from every import every

from agentspec.environment import without_folders
from agentspec.errors import ServerError
from agentspec.evals.run import turns
from agentspec.evals.run.phases import Kind, SliceResult, TimedCall
from agentspec.evals.served.hybrid import Bench
from agentspec.evals.served.hybrid_rows import (
    Figures,
    best_single,
    figures,
    goals,
    merge_runs,
    requests_until_recovered,
    together_seconds,
    tokens_until,
)
from agentspec.evals.served.hybrid_table import markdown
from agentspec.evals.workloads.hybrid import ROWS, WORKLOADS, plan_phases

MIXED = (
    TimedCall("agents", 0.0, 2.0, 9, 2),
    TimedCall("agents", 2.0, 3.0, 5, 2),
    TimedCall("open", 0.0, 2.5, 17, 8),
    TimedCall("open", 2.5, 4.0, 9, 8),
)


def phase(
    calls: tuple[TimedCall, ...] = MIXED, row: str = "mix", number: int = 0, *, drafter_steps: int = 0, text: str = "a"
) -> SliceResult:
    steps = 10 if drafter_steps else 0
    return SliceResult(
        row, number, calls, ([text],), steps=steps, drafter_steps=drafter_steps, verified_tokens=0, cpu_seconds=2.0
    )


def calls(kind: Kind, *accepted: int) -> tuple[TimedCall, ...]:
    """Calls of one step and one second each, one after another."""
    return tuple(TimedCall(kind, float(i), i + 1.0, n + 1, 1) for i, n in enumerate(accepted))


def run(tokens_per_second: float, **changes: Any) -> Figures:
    values: dict[str, Any] = {
        "requests": 2, "tokens": 20, "seconds": 1.0, "verify_steps": 9, "accept_length": 2.0,
        "whole_tokens_per_second": 5.0, "drafter_step_share": 0.2, "tokens_per_cpu_second": 8.0,
    }  # fmt: skip
    return Figures(**{**values, "tokens_per_second": tokens_per_second, **changes})


def row(workload: str, system: str, speed: float, **more: Any) -> dict[str, Any]:
    return {**merge_runs(workload, system, [run(speed)], identical=True), **more}


def test_no_question_or_prompt_is_asked_twice(databases: Any) -> None:
    phases = plan_phases(WORKLOADS, databases, num_requests=9, seed=1)
    streams = [stream for phase in phases for stream in phase.streams]
    questions = [question for stream in streams for question in stream.questions]
    prompts = [prompt[-1]["content"] for stream in streams for prompt in stream.prompts]
    assert len({(q.database, q.text) for q in questions}) == len(questions) == 5 * 3
    assert len(set(prompts)) == len(prompts) == 3 * 9


def test_the_mix_has_half_of_each_at_the_same_time(databases: Any) -> None:
    [mix] = [phase for phase in plan_phases(["mix"], databases, 9, seed=1) if phase.row == "mix"]
    assert [(stream.kind, stream.concurrency) for stream in mix.streams] == [("agents", 2), ("open", 2)]


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_work_of_a_workload_does_not_depend_on_the_others(databases: Any, name: str) -> None:
    everything, alone = plan_phases(WORKLOADS, databases, 9, seed=1), plan_phases([name], databases, 9, seed=1)
    for wanted in ROWS[name]:
        streams = [[phase.streams for phase in phases if phase.row == wanted] for phases in (everything, alone)]
        assert streams[0] == streams[1] != []
    # The warm workloads start with what was learned from the first questions.
    assert alone[0].flush and [phase.flush for phase in alone[1:]] == [False] * (len(alone) - 1)


def test_slices_hold_the_whole_phase_in_its_order(databases: Any) -> None:
    for phase in plan_phases(WORKLOADS, databases, 30, seed=1):
        parts = phase.slices(12)
        assert len(parts) == 2
        for i, stream in enumerate(phase.streams):
            assert sum((part[i].questions for part in parts), ()) == stream.questions
            assert sum((part[i].prompts for part in parts), ()) == stream.prompts
            assert {part[i].concurrency for part in parts} == {stream.concurrency}


def test_tokens_a_second_are_those_of_the_time_in_which_both_kinds_run() -> None:
    assert together_seconds(MIXED) == 3.0
    # A third of the last call's time lies before second 3.
    assert tokens_until(MIXED, 3.0) == pytest.approx(9 + 5 + 17 + 9 / 3)
    found = figures("suffix", [phase()])
    assert found.tokens_per_second == pytest.approx(34 / 3, abs=0.1)
    assert (found.requests, found.tokens, found.verify_steps, found.seconds) == (4, 40, 20, 4.0)
    assert found.whole_tokens_per_second == 10.0
    assert found.tokens_per_cpu_second == 20.0
    assert found.accept_length == 36 / 20
    assert found.more["by_kind"]["agents"] == {"requests": 2, "tokens": 14, "accept_length": 3.0}


@every(("system", "share"), [("none", 0.0), ("ngram", 0.0), ("suffix", 0.0), ("eagle3", 1.0), ("standalone", 1.0)])
def test_systems_that_count_no_steps_have_their_share_by_construction(system: str, share: float) -> None:
    assert figures(system, [phase()]).drafter_step_share == share


def test_requests_until_recovered() -> None:
    accepted = calls("agents", 1, 1, 3, 4, 4, 4)
    # The mean of the third and fourth request is 3.5, more than 90 % of 3.8.
    assert requests_until_recovered(accepted, steady=3.8, size=2) == 2
    assert requests_until_recovered(accepted, steady=1.1, size=2) == 0
    assert requests_until_recovered(accepted, steady=5.0, size=2) is None
    assert requests_until_recovered(accepted, steady=2.0, size=100) == 0


def test_a_change_is_measured_against_the_second_half_of_a_kind_s_first_phase() -> None:
    changing = [
        phase(calls("agents", *[1] * 12)),
        phase(calls("agents", *[4] * 12)),
        phase(calls("open", *[1] * 3, *[2] * 21), number=1),
        phase(calls("agents", *[2] * 6, *[4] * 18), number=2),
    ]
    more = figures("hybrid", changing).more
    assert more["steady"] == {"agents": 4.0, "open": 2.0}
    # The mean of 12 requests exceeds 1.8 with 2 at 1 and 10 at 2, and 3.6 with 2 at 2 and 10 at 4.
    assert more["recovered_after"] == [{"to": "open", "requests": 1}, {"to": "agents", "requests": 4}]
    assert [shown["accept_lengths"] for shown in more["windows"]] == [[1.0, 4.0], [1.75, 2.0], [3.0, 4.0]]


def test_rows_are_medians_that_say_how_far_the_runs_lie_apart() -> None:
    merged = merge_runs(
        "mix", "hybrid", [run(90.0, tokens=1), run(110.0, tokens=3), run(100.0, tokens=2)], identical=True
    )
    assert (merged["tokens_per_second"], merged["spread"], merged["tokens"]) == (100.0, 0.2, 2)
    assert merged["tokens_per_second_runs"] == [90.0, 110.0, 100.0]
    assert {"workload", "system", "accept_length", "drafter_step_share", "identical"} <= set(merged)


ROWS_SHOWN = [
    row("mix", "none", 100.0),
    row("mix", "eagle3", 200.0),
    merge_runs("mix", "suffix", [], identical=None, error="it | fell"),
    row("mix", "hybrid-score", 500.0),
    row("mix", "hybrid", 210.0),
]


def test_goals_compare_with_the_best_single_system() -> None:
    best = best_single(ROWS_SHOWN, "mix")
    assert best is not None and best["system"] == "eagle3"
    [goal] = goals(ROWS_SHOWN)
    assert (goal.value, goal.bound, goal.is_met) == (1.05, 1.1, False)
    change = row(
        "change", "hybrid", 99.0, recovered_after=[{"to": "open", "requests": None}, {"to": "a", "requests": 3}]
    )
    assert [goal.is_met for goal in goals([row("change", "none", 100.0), change])] == [True, False, True]
    assert [goal.bound for goal in goals([row("agents", "hybrid", 1.0)])] == [0.3]


def test_the_tables_show_failures_differences_misses_and_changes() -> None:
    changing = [phase(calls("agents", 1, 4), "change"), phase(calls("open", 1, 1), "change", 1)]
    changed = merge_runs("change", "hybrid", [figures("hybrid", changing)], identical=True)
    shown = markdown([*ROWS_SHOWN, row("open", "hybrid", 1.0, identical=False), changed], command="agentspec")
    assert "failed: it / fell" in shown and "DIFFERENT" in shown and "| missed |" in shown
    assert "| hybrid | 210 | 210 to 210 | 1.05 |" in shown and "| hybrid | 2.5 | 1.0 | 0 |" in shown


def test_outputs_are_compared_with_the_first_run_of_plain_decoding() -> None:
    bench = Bench(["none", "suffix", "hybrid"], ["mix"])
    for system, text in (("none", "a"), ("suffix", "a"), ("hybrid", "a"), ("hybrid", "b")):
        bench.add("mix", system, [phase(text=text)])
    assert {row["system"]: row["identical"] for row in bench.rows()} == {"none": True, "suffix": True, "hybrid": False}
    alone = Bench(["hybrid"], ["mix"])
    alone.add("mix", "hybrid", [phase()])
    assert alone.rows()[0]["identical"] is None


def test_a_server_that_fails_leaves_the_rows_it_had_finished(
    databases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started:
        start_seconds = 0.0

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *raised: object) -> None: ...

    def answers(*args: Any) -> Any:
        yield phase(row="agents-cold")
        if args[1].label != "SGLang":
            yield phase(row="agents", number=1)
            return
        raise ServerError("it fell over\n/home/someone/site-packages/x.py\nValueError: at /tmp/folder/file.json")

    monkeypatch.setattr(turns, "Server", Started)
    monkeypatch.setattr(turns, "run_phases", answers)
    bench = Bench(["none", "suffix"], ["agents"])
    bench.measure(["none", "suffix"], plan_phases(["agents"], databases, 3, seed=0), databases, 12, tmp_path, "0")
    cold, other_cold, warm, other_warm = bench.rows()
    assert cold["tokens_per_second"] and "error" not in cold
    assert warm["error"] == "it fell over ValueError: at file.json"
    assert other_cold["tokens_per_second"] and other_warm["tokens_per_second"]


def test_recorded_words_hold_no_folders() -> None:
    assert without_folders("--json=/tmp/out/x.json") == "--json=x.json"
    assert without_folders("/home/me/models/tiny-sql-eagle3") == "tiny-sql-eagle3"
    assert without_folders("none,ngram https://host/a/b 2/3") == "none,ngram https://host/a/b 2/3"
