"""The verdict's rows, and the records of a server's calls, which the report reads as a log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentspec.analysis.logs.formats import calls_of
from agentspec.errors import ConfigError, ServerError
from agentspec.evals.report.verdict import VerdictPlan, served_flags, shown, verdict_row
from agentspec.evals.run.phases import SliceResult, TimedCall, WatchedChat
from agentspec.evals.workloads.load import WORKLOADS
from agentspec.evals.workloads.verdict import logged_work, measured_work, note, phases_of
from agentspec.workflows.text_to_sql import DATABASES, Completion, Message, create_all

STATE = {"outputs": 100, "accept_length": 2.5}
PREDICTED = {
    "concurrency": 8,
    "low": 1.2,
    "high": 1.6,
    "cold": {**STATE, "low": 1.2, "high": 1.4},
    "warm": {**STATE, "low": 1.3, "high": 1.6},
}


def turn(seconds: float, outputs: tuple[Any, ...] = ("a",)) -> SliceResult:
    """A turn of 100 tokens in 50 steps."""
    calls = (TimedCall("agents", 0.0, seconds, 101, 50),)
    return SliceResult("cold@8", 0, calls, outputs, 50, 0, 0, 0.0)


@pytest.mark.parametrize(
    ("ours", "contained", "by_state"), [(1.0, True, True), (0.9, True, False), (0.7, False, False), (1.2, False, False)]
)
def test_the_middle_turn_is_inside_or_not(ours: float, contained: bool, by_state: bool) -> None:
    measured = {"cold@8": {"none": [turn(1.3)] * 3, "agentspec": [turn(ours - 0.3), turn(ours), turn(9.0)]}}
    row = verdict_row("agents", PREDICTED, "cold", measured)
    assert row["measured"] == pytest.approx(1.3 / ours, abs=1e-3) and row["measured_accept_length"] == 2.0
    assert (row["contained"], row["contained_by_state"], row["identical"]) == (contained, by_state, True)
    assert shown(row).count("OUTSIDE") == 2 - contained - by_state


def test_a_server_that_failed_leaves_the_prediction_alone() -> None:
    row = verdict_row("agents", PREDICTED, "warm", {"warm@8": {"none": [turn(1.0)]}}, ["it did not start"])
    assert row["measured"] is row["contained"] is None and "it did not start" in shown(row)
    assert verdict_row("agents", PREDICTED, "warm", {})["measured"] is None


def test_other_outputs_are_told() -> None:
    measured = {"cold@8": {"none": [turn(1.0)], "agentspec": [turn(1.0, ("b",))]}}
    assert verdict_row("agents", PREDICTED, "cold", measured)["identical"] is False


@pytest.mark.parametrize("workload", WORKLOADS)
def test_nothing_of_the_log_is_measured_and_a_learning_server_is_asked_it_before_each_warm_row(
    workload: str, tmp_path: Path
) -> None:
    paths = create_all(DATABASES, tmp_path)
    databases = {database: paths[database.name] for database in DATABASES}
    log = logged_work(workload, databases, 30, 0)
    work = measured_work(workload, databases, (1, 2), {"cold": 30, "warm": 12}, 2, 0)
    assert list(work) == ["cold@1", "cold@2", "warm@1", "warm@2"]
    asked = [
        part
        for turns in work.values()
        for one in turns
        for part in (one.streams[0].questions or one.streams[0].prompts)
    ]
    assert not {repr(part) for part in asked} & {repr(part) for part in (log.questions or log.prompts)}
    rows = [(phase.row, phase.flush) for phase in phases_of(work, log)]
    assert rows == [
        *(("cold@1", True), ("cold@1", False), ("cold@2", True), ("cold@2", False)),
        *(("", True), ("warm@1", False), ("warm@1", False), ("", True), ("warm@2", False), ("warm@2", False)),
    ]
    assert [phase.row for phase in phases_of(work, None)] == [row for row, _ in rows if row]


def test_a_drafter_that_is_not_there_is_not_served() -> None:
    flags = ["--speculative-algorithm", "AGENTSPEC", "--speculative-num-draft-tokens", "32"]
    drafter = ["--speculative-draft-model-path", "DRAFTER", "--agentspec-base", "EAGLE3"]
    assert served_flags([*flags, *drafter]) == ["--speculative-num-draft-tokens", "32"]


class Parrot:
    """Answers with the last message; at "" it fails."""

    async def complete(self, messages: Sequence[Message], max_tokens: int) -> Completion:
        text = messages[-1]["content"]
        return Completion(text=text) if text else Completion(error="no answer")


def test_what_is_recorded_is_read_as_requests() -> None:
    records: list[dict[str, Any]] = []
    recorder = WatchedChat(Parrot(), "the server", note(records))
    asyncio.run(recorder.complete([{"role": "user", "content": "hello"}], 4))
    (record,) = json.loads(json.dumps(records))
    form, (call,) = calls_of(record, "")
    assert (form, call.messages, call.output) == ("openai", (("user", "hello"),), "hello")
    with pytest.raises(ServerError, match="no answer"):
        asyncio.run(recorder.complete([{"role": "user", "content": ""}], 4))


def test_plans_out_of_range(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workloads"):
        VerdictPlan(workloads=("chat",))
    with pytest.raises(ConfigError, match="at least 1"):
        VerdictPlan(concurrency=(0, 8))
    assert VerdictPlan(quick=True).profile_plan().serving
