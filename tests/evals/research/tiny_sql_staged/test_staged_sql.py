from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("sqlglot", reason="the agents parse SQL; `make setup` installs sqlglot")

from agentspec.evals.research.staged_sql import accuracy_by_step
from agentspec.evals.research.tiny_sql_staged.corpus import WORKFLOW
from agentspec.workflows.text_to_sql.generated.reference import ReferenceConfig, ReferenceModel
from agentspec.workflows.text_to_sql.run import run_tasks
from agentspec.workflows.text_to_sql.sql.sources import Databases
from agentspec.workflows.text_to_sql.tasks import generated_tasks


def test_accuracy_rises_from_drafts_to_the_answer(tmp_path: Path) -> None:
    drawn = generated_tasks(tmp_path, 12)
    reference = ReferenceModel(drawn.questions, drawn.paths, ReferenceConfig(wrong_sql=0.5))
    databases = Databases(drawn.paths, {})
    records = asyncio.run(run_tasks(reference, drawn.tasks, databases, WORKFLOW, run="reference", concurrency=4))
    steps = accuracy_by_step(records, databases)
    assert 0.2 < steps["single draft"] < 0.8
    assert steps["vote"] <= steps["after combine"] <= steps["answer"]
    assert steps["answer"] > steps["single draft"]
