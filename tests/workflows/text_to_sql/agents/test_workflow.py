"""The stages against models that answer in scripted ways; nothing here needs a server."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from every import every
from staged_answers import ANSWERS, QUESTION, RIGHT, Scripted

from agentspec import ConfigError
from agentspec.workflows.text_to_sql import Database, Message
from agentspec.workflows.text_to_sql.agents.client import GREEDY
from agentspec.workflows.text_to_sql.agents.stages import WAYS
from agentspec.workflows.text_to_sql.agents.transcript import CallFailed, Transcript
from agentspec.workflows.text_to_sql.agents.workflow import Solution, WorkflowConfig, solve
from agentspec.workflows.text_to_sql.generated.domains import SHOP
from agentspec.workflows.text_to_sql.sql.sources import Source, open_source


@pytest.fixture(scope="module")
def shop(databases: dict[Database, Path]) -> Source:
    return open_source("shop", databases[SHOP])


def run(shop: Source, config: WorkflowConfig | None = None, **changed: str | list[str]) -> tuple[Solution, Scripted]:
    """Solves QUESTION with the answers in ANSWERS, except for the stages in `changed`.

    A changed stage always gives the same answer, or those of a list in turn, of which it repeats the last.
    """

    def script(stage: str, messages: Sequence[Message], earlier: int) -> str:
        said = changed.get(stage, ANSWERS[stage])
        return said if isinstance(said, str) else said[min(earlier, len(said) - 1)]

    model = Scripted(script)
    return asyncio.run(solve(model, QUESTION, shop, config or WorkflowConfig(), Transcript())), model


def test_agreeing_drafts_need_seven_calls(shop: Source) -> None:
    solution, model = run(shop)
    assert solution.sql == RIGHT and solution.execution.ok and solution.fallbacks == ()
    assert model.counts() == {"classify": 1, "extract": 1, "enrich": 1, "draft": 3, "check": 1}


def test_drafts_are_sampled_each_another_way_and_all_else_is_greedy(shop: Source) -> None:
    _, model = run(shop, WorkflowConfig(drafts=4, temperature=0.5, seed=7))
    drafts = [(messages[1]["content"], sampling) for stage, messages, sampling in model.calls if stage == "draft"]
    assert [next(way for way in WAYS if text.endswith(way)) for text, _ in drafts] == [*WAYS, WAYS[0]]
    assert [(some.temperature, some.seed) for _, some in drafts] == [(0.5, seed) for seed in (7, 8, 9, 10)]
    assert len({some.group for _, some in drafts}) == 1 and drafts[0][1].group
    assert all(sampling == GREEDY for stage, _, sampling in model.calls if stage != "draft")
    assert run(shop, WorkflowConfig(drafts=1))[1].calls[3][2] == GREEDY


def test_prompts_begin_with_what_they_share(shop: Source) -> None:
    _, model = run(shop, draft=["SELECT 1", "SELECT 2", "SELECT 3"], check='{"verdict": "repair"}')
    assert len({messages[0]["content"] for _, messages, _ in model.calls}) == 1
    drafts = [messages[1]["content"] for stage, messages, _ in model.calls if stage == "draft"]
    assert len({text.rpartition("\n")[0] for text in drafts}) == 1
    assert all("note: customers.city = 'Lisbon'" in text and "number of customers" in text for text in drafts)


def test_split_drafts_are_combined_from_their_different_results(shop: Source) -> None:
    solution, model = run(shop, draft=["SELECT 1", "SELECT nothing", "SELECT 2"])
    assert solution.sql == RIGHT and model.counts()["combine"] == 1
    told = next(messages[1]["content"] for stage, messages, _ in model.calls if stage == "combine")
    assert "candidate 1: SELECT 1\n" in told and "candidate 2: SELECT 2\n" in told and "nothing" not in told


def test_a_combination_that_fails_gives_way_to_the_likeliest_draft(shop: Source) -> None:
    for combined in ("SELECT nothing", "DROP TABLE customers", ""):
        solution, _ = run(shop, draft=["SELECT 1", "SELECT 2", "SELECT 3"], combine=combined)
        assert solution.sql == "SELECT 1", combined


@pytest.mark.parametrize("stage", ["classify", "extract", "enrich", "check"])
@pytest.mark.parametrize(
    "nonsense", ["", "no", '{"kind": 3, "tables": ["none"], "question": [], "verdict": null}', "{"]
)
def test_nonsense_is_asked_for_again_and_then_done_without(shop: Source, stage: str, nonsense: str) -> None:
    solution, model = run(shop, **{stage: nonsense})
    assert solution.sql == RIGHT and solution.fallbacks == (stage,)
    assert model.counts()[stage] == 2
    again = [messages for name, messages, _ in model.calls if name == stage][1]
    assert [message["role"] for message in again] == ["system", "user", "assistant", "user"]
    assert again[2]["content"] and again[3]["content"].endswith("Answer again.")
    second, model = run(shop, **{stage: [nonsense, ANSWERS[stage]]})
    assert second.sql == RIGHT and second.fallbacks == ()


def test_features_fall_back_on_what_the_notes_speak_of(shop: Source) -> None:
    _, model = run(shop, WorkflowConfig(max_retries=0), extract="no")
    told = next(messages[1]["content"] for stage, messages, _ in model.calls if stage == "enrich")
    features = json.loads(told.split("features: ")[1].splitlines()[0])
    assert features["tables"][0] == "customers" and "customers.city" in features["columns"]


def test_features_fall_back_on_columns_whose_names_hold_spaces(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as connection, connection:
        connection.execute('CREATE TABLE meals ("Free Meals" INTEGER, city TEXT)')
    source = open_source("x", tmp_path / "x.sqlite")
    model = Scripted(lambda stage, messages, earlier: "no" if stage == "extract" else ANSWERS[stage])
    asyncio.run(solve(model, "How many free meals?", source, WorkflowConfig(max_retries=0), Transcript()))
    told = next(messages[1]["content"] for stage, messages, _ in model.calls if stage == "enrich")
    assert json.loads(told.split("features: ")[1].splitlines()[0])["columns"] == ["meals.Free Meals", "meals.city"]


def test_no_usable_draft_goes_to_the_repairer(shop: Source) -> None:
    solution, model = run(shop, draft=["", "DELETE FROM customers", "I cannot."])
    assert solution.sql == RIGHT and solution.fallbacks == ("draft",) * 3
    told = next(messages[1]["content"] for stage, messages, _ in model.calls if stage == "repair")
    assert "sql: (none)\nproblem: no draft was one SELECT statement" in told


def test_nothing_usable_at_all_ends_without_sql(shop: Source) -> None:
    solution, model = run(shop, **dict.fromkeys(ANSWERS, "?"))
    assert solution.sql == "" and "no draft" in solution.execution.error
    assert len(model.calls) == 2 * 7


def test_sql_that_fails_is_repaired_without_a_check(shop: Source) -> None:
    solution, model = run(shop, draft="SELECT town FROM customers")
    assert solution.sql == RIGHT and model.counts() == {
        "classify": 1, "extract": 1, "enrich": 1, "draft": 3, "combine": 1, "check": 1,
    }  # fmt: skip
    solution, model = run(shop, draft="SELECT town FROM customers", combine="SELECT x", repair=["SELECT y", RIGHT])
    assert solution.sql == RIGHT and model.counts()["repair"] == 2


def test_repair_rounds_are_bounded_and_keep_what_runs(shop: Source) -> None:
    doubt = '{"verdict": "repair", "reason": "hm"}'
    solution, model = run(shop, check=doubt, repair=["SELECT nothing", "SELECT nothing2"])
    assert solution.sql == RIGHT and model.counts()["repair"] == 2
    solution, model = run(shop, WorkflowConfig(max_repairs=5), check=doubt, repair=RIGHT)
    # The repair gives the same statement again, so another round would ask the same question.
    assert solution.sql == RIGHT and model.counts()["repair"] == 1
    _, model = run(shop, WorkflowConfig(max_repairs=0), draft="SELECT nothing")
    assert "repair" not in model.counts() and "check" not in model.counts()


@pytest.mark.parametrize("stage", ["classify", "extract", "enrich", "draft", "check"])
def test_a_failing_call_fails_the_question_and_waits_for_the_others(shop: Source, stage: str) -> None:
    transcript = Transcript()
    model = Scripted(lambda name, messages, earlier: "DOWN" if name == stage else ANSWERS[name])
    with pytest.raises(CallFailed, match=f"{stage}: out of order"):
        asyncio.run(solve(model, QUESTION, shop, WorkflowConfig(), transcript))
    assert len(transcript.calls) == len(model.calls)


@every("wrong", [{"drafts": 0}, {"max_tokens": 0}, {"max_repairs": -1}, {"temperature": 3}, {"sql_timeout_s": 0}])
def test_config_refuses_impossible_limits(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        WorkflowConfig(**wrong)  # type: ignore[arg-type]
