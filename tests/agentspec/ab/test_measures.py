"""The facts of a comparison, from turns made up here; and the page and the summary of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ab_turns import ARMS, turns, with_frame

from agentspec.ab.experiment import Turn
from agentspec.ab.measures import facts_of
from agentspec.ab.page import page
from agentspec.ab.summary import summary


def changed(found: list[Turn], place: int, **more: Any) -> list[Turn]:
    """The turns with fields of one result and its call changed."""
    turn = found[place]
    results = tuple(replace(r, **{k: v for k, v in more.items() if k in r.__slots__}) for r in turn.results)
    calls = tuple(replace(c, **{k: v for k, v in more.items() if k in c.__slots__}) for c in turn.calls)
    return [*found[:place], replace(turn, results=results, calls=calls), *found[place + 1 :]]


def rows(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in facts["figures"]}


def test_every_figure_is_what_the_turns_say() -> None:
    facts = facts_of(turns(8), ARMS, [])
    found = rows(facts)
    assert {key: (row["a"], row["b"], row["ratio"]) for key, row in found.items()} == {
        "wall": (3.0, 2.0, 1.5),
        "model": (2.0, 1.0, 2.0),
        "outside": (1.0, 1.0, 1.0),
        "rate": (1200.0, 1800.0, 1.5),
        "speed": (5.5, 11.0, 2.0),
        "throughput": (pytest.approx(11 / 3, rel=1e-4), 5.5, 1.5),
        "ttft": (pytest.approx(0.1), pytest.approx(0.1), pytest.approx(1.0)),
        "tpot": (pytest.approx(0.19), pytest.approx(0.09), pytest.approx(1.9 / 0.9, rel=1e-4)),
        "accept": (None, 2.0, None),
        "calls": (1.0, 1.0, 1.0),
        "tokens": (11.0, 11.0, 1.0),
    }
    assert facts["answers"] | {"again": None} == {
        "compared": 8, "identical": 8, "only_a": 0, "only_b": 0, "again": None, "different_tasks": [],
    }  # fmt: skip
    assert facts["interval"]["over"] == "turns" and facts["tasks"] == 8
    assert "1.50 times (1.50 to 1.50) as fast on agentspec as on plain; all 8 answers" in facts["headline"]


def test_with_few_turns_intervals_are_over_tasks() -> None:
    assert facts_of(turns(4), ARMS, [])["interval"]["over"] == "tasks"


def test_a_task_that_failed_on_one_server_counts_on_neither() -> None:
    facts = facts_of(changed(turns(8), 0, error="no answer", seconds=100.0), ARMS, [])
    assert facts["tasks"] == 7 and rows(facts)["wall"]["a"] == 3.0
    assert any("1 tasks failed on server a" in note and "no answer" in note for note in facts["could_not_compare"])


def test_turns_with_a_failed_task_count_only_the_tasks_that_both_did() -> None:
    found = turns(8)
    for place, error in ((0, ""), (1, "500")):
        turn, more = found[place], turns(9)[16 + place]
        results = (*turn.results, *(replace(result, error=error) for result in more.results))
        calls = (*turn.calls, *(replace(call, error=error) for call in more.calls))
        # The server that failed was done earlier.
        found[place] = replace(turn, results=results, calls=calls, seconds=turn.seconds if error else 2 * turn.seconds)
    facts = facts_of(found, ARMS, [])
    figures = {key: (row["a"], row["b"]) for key, row in rows(facts).items()}
    assert figures["rate"] == (1200.0, 1800.0) and figures["calls"] == (1.0, 1.0) and figures["tokens"] == (11.0, 11.0)
    assert "of the tasks that both did (1 of 9 failed on agentspec)" in facts["headline"]
    assert any("leave out 1 of 8 pairs" in note for note in facts["could_not_compare"])


def test_a_warm_up_does_not_count() -> None:
    found = turns(8)
    warm = [replace(turn, slice=-1, seconds=999.0) for turn in found[:2]]
    assert rows(facts_of([*warm, *found[2:]], ARMS, []))["rate"]["a"] == 1200.0


def test_other_answers_are_counted_and_named() -> None:
    facts = facts_of(changed(turns(8), 1, answer="other"), ARMS, [])
    assert facts["answers"]["identical"] == 7 and facts["answers"]["different_tasks"] == ["t0"]
    assert "7 of 8 answers" in facts["headline"]


def test_drawn_answers_and_requests_of_one_server_are_not_compared_but_named() -> None:
    found = changed(changed(turns(8), 0, is_greedy=False), 2, request="elsewhere")
    facts = facts_of(found, ARMS, [])
    assert (facts["answers"]["compared"], facts["answers"]["only_a"], facts["answers"]["only_b"]) == (6, 1, 2)
    notes = "\n".join(facts["could_not_compare"])
    assert "1 of 16 calls do not ask for temperature 0" in notes and "3 greedy answers were not compared" in notes


def test_a_server_that_does_not_repeat_itself_is_named() -> None:
    found = turns(8)
    again = [replace(turn, repeat=1) for turn in changed(found, 0, answer="other")]
    facts = facts_of([*found, *again], ARMS, [])
    assert facts["answers"]["again"] == {"a": {"requests": 8, "same": 7}, "b": {"requests": 8, "same": 8}}
    assert "does not repeat itself" in page(with_frame(facts))


def test_success_is_counted_in_pairs() -> None:
    facts = facts_of(changed(changed(turns(8), 0, success=False), 3, success=False), ARMS, [])
    assert facts["success"] == {
        "graded": 8, "both": 6, "only_a": 1, "only_b": 1, "neither": 0, "a": 0.875, "b": 0.875,
    }  # fmt: skip


def test_no_difference_is_said_where_the_interval_contains_one() -> None:
    found = [
        replace(t, results=tuple(replace(r, seconds=1.0 + (n % 3) * 0.1) for r in t.results))
        for n, t in enumerate(turns(8))
    ]
    assert facts_of(found, ARMS, [])["headline"].startswith("No difference was found")
    slower = facts_of(turns(8, a=1.0, b=2.0), ARMS, [])["headline"]
    assert slower.startswith("A task takes 1.50 times (1.50 to 1.50) as long on agentspec as on plain")


def test_what_is_not_known_is_named() -> None:
    bare = [
        replace(
            turn, calls=tuple(replace(c, first=None, completion_tokens=None, verify_steps=None) for c in turn.calls)
        )
        for turn in turns(8)
    ]
    facts = facts_of(bare, ARMS, ["The log has no times."])
    assert not rows(facts).keys() & {"ttft", "tpot", "speed", "accept"}
    notes = "\n".join(facts["could_not_compare"])
    for part in ("The log has no times.", "were not streamed", "does not tell numbers of tokens", "no accept length"):
        assert part in notes
    unrecorded = facts_of([replace(turn, calls=()) for turn in turns(8)], ARMS, [])
    assert any("No call of a model was recorded" in note for note in unrecorded["could_not_compare"])
    assert unrecorded["headline"].startswith("The servers could not be compared: no call of a model was recorded")


def test_nothing_done_by_both_is_no_comparison() -> None:
    facts = facts_of(turns(8)[:1], ARMS, [])
    assert facts["tasks"] == 0 and facts["headline"] == "The servers could not be compared."
    assert "No task was done by both" in page(with_frame(facts))


def test_the_page_and_the_summary_say_the_same_and_escape_what_they_show() -> None:
    facts = with_frame(facts_of(turns(8), {**ARMS, "a": replace(ARMS["a"], name="<script>alert(1)</script>")}, ["<b>"]))
    text, html = summary(facts), page(facts)
    for part in ("1.50", "8"):
        assert part in text and part in html
    assert "<script>alert" not in html and "<b>" not in html
    assert "http://" not in html.replace("http://www.w3.org", "") and "https://" not in html
