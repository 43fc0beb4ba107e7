"""`agentspec eval` on real servers: cells of live tasks, by both load generators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentspec.evals.run.calls import Asking, ask_cells
from agentspec.evals.run.cells import Cell, plan_cells
from agentspec.evals.run.records import compared, record_of
from agentspec.evals.systems import HYBRIDS, SYSTEMS
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads import TASKS
from agentspec.evals.workloads.prompts import chat_encoder
from agentspec.evals.workloads.task import TaskInputs
from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]


@pytest.fixture(scope="module")
def inputs(databases: dict[Any, Path]) -> TaskInputs:
    return TaskInputs(model=MODEL_FOLDER, databases=databases, learnt_calls=2, seed=5)


def asking(inputs: TaskInputs) -> Asking:
    return Asking(databases=inputs.databases, encode=chat_encoder(MODEL_FOLDER), is_replay=False)


def test_cells_give_the_same_answers_on_both_servers(plain: Server, agentspec: Server, inputs: TaskInputs) -> None:
    has_drafter = "--speculative-draft-model-path" in agentspec.command
    # The chain of agents takes long and is no different with a draft model.
    tasks = ["open_chat"] if has_drafter else ["text_to_sql", "open_chat"]
    cells: list[Cell] = []
    for name in tasks:
        cells += plan_cells(name, TASKS[name].pool(inputs), ("warm",), (1,), 1, 4, max_turns=2)
    ours = ("hybrid", HYBRIDS["hybrid"]) if has_drafter else ("suffix", SYSTEMS["agentspec"])
    records = []
    for server, (name, system) in ((plain, ("none", SYSTEMS["none"])), (agentspec, ours)):
        turns = list(ask_cells(server, system, cells, asking(inputs)))
        assert [turn.result is not None for turn in turns] == [
            n == len(c.turns) for c in cells for n, _ in enumerate(c.turns, 1)
        ]
        records += [record_of(name, system, turn.result, {}) for turn in turns if turn.result]
    found = compared(records)
    assert [record["task"] for record in found] == tasks * 2
    for record in found:
        assert record["identical"] is True and record["failed"] == 0, record
        assert 0 < record["ttft_ms_p50"] < 1e3 * record["latency_p99_s"]
        assert record["tokens_per_second"] > record["goodput"] > 0
        assert record["accept_length"] == 1.0 if record["system"] == "none" else record["accept_length"] > 1.0
        assert record["accuracy"] is not None if record["task"] == "text_to_sql" else record["accuracy"] is None
    drafted = [record for record in found if record["system"] != "none"]
    assert all(0 < record["draft_share"] < 1 and 0 < record["acceptance_rate"] <= 1 for record in drafted)
