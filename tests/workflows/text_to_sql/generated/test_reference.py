"""The staged agents end to end, with a model that knows the gold answers and errs on purpose."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from chat_server import chat_server
from openai import AsyncOpenAI

from agentspec import ConfigError
from agentspec.workflows.text_to_sql import OpenAIChat
from agentspec.workflows.text_to_sql.agents.client import SamplingModel
from agentspec.workflows.text_to_sql.agents.workflow import WorkflowConfig
from agentspec.workflows.text_to_sql.generated.mistakes import wrong_query
from agentspec.workflows.text_to_sql.generated.reference import ForcedChat, ReferenceConfig, ReferenceModel
from agentspec.workflows.text_to_sql.records import Record
from agentspec.workflows.text_to_sql.run import Databases, run_tasks
from agentspec.workflows.text_to_sql.sql.execute import execute
from agentspec.workflows.text_to_sql.sql.score import is_ordered, same_result
from agentspec.workflows.text_to_sql.tasks import GeneratedTasks, generated_tasks


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> GeneratedTasks:
    return generated_tasks(tmp_path_factory.mktemp("drawn"), 40, seed=5)


def run(
    drawn: GeneratedTasks, model: SamplingModel, config: WorkflowConfig | None = None, number: int = 40
) -> list[Record]:
    databases = Databases(drawn.paths, {})
    running = run_tasks(
        model, drawn.tasks[:number], databases, config or WorkflowConfig(), run="reference", concurrency=5
    )
    return asyncio.run(running)


def reference(drawn: GeneratedTasks, **config: Any) -> ReferenceModel:
    return ReferenceModel(drawn.questions, drawn.paths, ReferenceConfig(**config))


def test_without_mistakes_every_question_takes_the_shortest_way(drawn: GeneratedTasks) -> None:
    records = run(drawn, reference(drawn, wrong_sql=0, damaged_json=0))
    assert [record["session"] for record in records] == [task.identity for task in drawn.tasks]
    for record in records:
        assert record["outcome"] == "correct", record
        stages = Counter(call["stage"] for call in record["calls"])
        assert stages == {"classify": 1, "extract": 1, "enrich": 1, "draft": 3, "check": 1}
        assert record["fallbacks"] == [] and record["outside_seconds"] <= record["seconds"]


def test_mistakes_take_every_stage_and_are_mostly_mended(drawn: GeneratedTasks) -> None:
    records = run(drawn, reference(drawn, wrong_sql=0.6, damaged_json=0.3))
    stages = Counter(call["stage"] for record in records for call in record["calls"])
    assert stages["combine"] > 3 and stages["repair"] > 3 and stages["classify"] > 40
    for record, task in zip(records, drawn.tasks, strict=True):
        gold, got = (execute(drawn.paths[task.database], sql) for sql in (task.sql, record["sql"]))
        same = same_result(gold, got, ordered=is_ordered(task.sql))
        assert record["outcome"] == ("correct" if same else "wrong")
    assert sum(record["outcome"] == "correct" for record in records) > 30


def test_a_seed_gives_the_same_run_whatever_the_order_of_its_calls(drawn: GeneratedTasks) -> None:
    def kept(records: list[Record]) -> Any:
        timeless = ("began", "seconds")
        return [
            sorted(str({k: v for k, v in call.items() if k not in timeless}) for call in record["calls"])
            for record in records
        ]

    first, second = (kept(run(drawn, reference(drawn, wrong_sql=0.5, seed=1), number=12)) for _ in range(2))
    assert first == second
    assert first != kept(run(drawn, reference(drawn, wrong_sql=0.5, seed=2), number=12))


def test_mistakes_are_mistakes(drawn: GeneratedTasks) -> None:
    rng = random.Random(0)
    differing = 0
    for task, question in zip(drawn.tasks, drawn.questions, strict=True):
        sql = wrong_query(question.query, rng)
        assert sql != task.sql
        gold, got = (execute(drawn.paths[task.database], text) for text in (task.sql, sql))
        differing += not same_result(gold, got, ordered=is_ordered(task.sql))
    # The rows may stay the same when a condition is lost or an order is reversed.
    assert differing > 0.7 * len(drawn.tasks)


def test_unknown_questions_fail_by_themselves(drawn: GeneratedTasks) -> None:
    model = ReferenceModel(drawn.questions[1:], drawn.paths)
    records = run(drawn, model, number=6)
    assert [record["outcome"] == "error" for record in records] == [True, *[False] * 5]
    assert "knows no answer" in records[0]["detail"] and records[0]["failures"] and not records[0]["calls"]


def test_a_server_is_made_to_write_the_answers(drawn: GeneratedTasks) -> None:
    """This tests the protocol of forced answers. The tests of the server cover what the server does with it."""
    forced: list[str] = []

    def script(request: dict[str, Any]) -> str:
        forced.append(request["custom_params"]["agentspec"]["replay"]["text"])
        return forced[-1]

    async def ask(url: str) -> list[Record]:
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            model = ForcedChat(OpenAIChat(client, "m"), reference(drawn))
            databases = Databases(drawn.paths, {})
            return await run_tasks(model, drawn.tasks[:3], databases, WorkflowConfig(), run="m", concurrency=2)

    with chat_server(script) as url:
        records = asyncio.run(ask(url))
    assert sorted(forced) == sorted(call["output"] for record in records for call in record["calls"])
    assert all(record["outcome"] == "correct" for record in records)
    assert all(call["prompt_tokens"] == 11 for record in records for call in record["calls"])


def test_shares_must_be_shares() -> None:
    with pytest.raises(ConfigError, match="wrong_sql"):
        ReferenceConfig(wrong_sql=1.5)


def test_a_damaged_database_costs_its_own_questions(drawn: GeneratedTasks, tmp_path: Path) -> None:
    """A damaged database costs its own questions alone."""
    (tmp_path / "torn.sqlite").write_bytes(b"torn" * 999)
    name = drawn.tasks[0].database
    torn = GeneratedTasks(drawn.tasks, drawn.questions, {**drawn.paths, name: tmp_path / "torn.sqlite"})
    for record in run(torn, reference(drawn, wrong_sql=0, damaged_json=0), number=12):
        assert (record["outcome"] == "error") == (record["task"] == name)
        assert record["task"] != name or "cannot read the database" in record["detail"]
