"""A real model's own answers on a CPU: the edits that a person asks first of a new server."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from needs import ROOT, TRACES

from agentspec.evals import real_models
from agentspec.evals.tool_calls import real
from agentspec.evals.workloads import TASKS
from agentspec.evals.workloads.task import Conversation, TaskInputs
from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server, pytest.mark.traces, pytest.mark.real_model]

EDITS = 2
ARGUMENTS = ("--context-length", "4096", "--max-total-tokens", "8192", "--max-running-requests", "4")


def test_a_cold_server_edits_as_plain_sglang_does_in_few_steps(tmp_path: Path) -> None:
    model = real_models.folder_of("0.5b", ROOT / real_models.FOLDER)
    pool = TASKS["edits"].pool(TaskInputs(model=model, data=TRACES, learnt_calls=1, max_answer_tokens=300))
    bodies = [unit.calls[0].body for unit in islice(pool.draw(EDITS, 1), EDITS) if isinstance(unit, Conversation)]

    def answered(algorithm: str) -> tuple[list[Any], int]:
        threads = {"OMP_NUM_THREADS": str(os.cpu_count())}
        log = tmp_path / f"{algorithm}.log"
        with Server(model, algorithm, log=log, arguments=ARGUMENTS, environment=threads) as server:
            answers = [server.post("/generate", body)["output_ids"] for body in bodies]
            counters = (server.agentspec_state() or {}).get("counters", {})
        return answers, int(counters.get("verify_steps", 0))

    answers, steps = answered("AGENTSPEC")
    assert answers == answered("none")[0]
    assert sum(map(len, answers)) > 4 * steps > 0


def test_streamed_tool_calls_are_those_of_plain_sglang() -> None:
    assert real.main(["--models", str(ROOT / real_models.FOLDER), "--requests", "8", "--max-tokens", "60"]) == 0
