"""The verdict's rows, and that what is recorded of a server is a log that the report reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError, ServerError
from agentspec.evals.report_verdict import Recorder, VerdictPlan, shown, verdict_row
from agentspec.report.formats import calls_of
from agentspec.workflows.text_to_sql import Completion, Message

FACTS = {"inputs": {"num_outputs": 100}, "verdict": {"kind": "suffix"}}
PREDICTED = {"concurrency": 8, "low": 1.2, "high": 1.6, "accept_length": 2.5}


def load_rows(*speeds: tuple[float, float], clients: int = 8) -> list[dict[str, Any]]:
    """Of turns (plain, agentspec) in tokens a second."""
    return [
        {
            "workload": "agents",
            "concurrency": clients,
            "system": system,
            "tokens_per_second": sum(turn[i] for turn in speeds) / len(speeds),
            "tokens_per_second_turns": [turn[i] for turn in speeds],
            "accept_length": 2.0,
            "requests": 12,
            "identical": True,
            "error": "",
        }
        for i, system in enumerate(("none", "agentspec"))
    ]


@pytest.mark.parametrize(("ours", "contained"), [(120.0, True), (160.0, True), (119.0, False), (161.0, False)])
def test_the_median_turn_is_inside_or_not(ours: float, contained: bool) -> None:
    row = verdict_row("agents", PREDICTED, load_rows((100.0, ours), (100.0, 900.0), (100.0, 10.0)), FACTS)
    assert row["measured"] == pytest.approx(ours / 100) and row["contained"] is contained
    assert ("OUTSIDE" in shown(row)) is not contained


def test_a_server_that_failed_leaves_the_prediction_alone() -> None:
    rows = load_rows((100.0, 120.0))
    rows[1] = {**rows[1], "tokens_per_second": None, "error": "it did not start"}
    row = verdict_row("agents", PREDICTED, rows, FACTS)
    assert row["measured"] is row["contained"] is None and "it did not start" in shown(row)
    assert verdict_row("agents", PREDICTED, load_rows((100.0, 120.0), clients=1), FACTS)["measured"] is None


class Parrot:
    """Answers with the last message; at "" it fails."""

    async def complete(self, messages: Sequence[Message], max_tokens: int) -> Completion:
        text = messages[-1]["content"]
        return Completion(text=text) if text else Completion(error="no answer")


def test_what_is_recorded_is_read_as_requests() -> None:
    recorder = Recorder(Parrot())
    asyncio.run(recorder.complete([{"role": "user", "content": "hello"}], 4))
    (record,) = json.loads(json.dumps(recorder.records))
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
