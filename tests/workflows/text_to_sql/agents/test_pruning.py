"""Schemas wider than the budget: what a question needs survives, and prompts stay below the budget."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from staged_answers import ANSWERS, Scripted

from agentspec import ConfigError
from agentspec.workflows.text_to_sql.agents.pruning import estimated_tokens, focused_schema, relevant_schema
from agentspec.workflows.text_to_sql.agents.stages import RULES
from agentspec.workflows.text_to_sql.agents.transcript import Transcript
from agentspec.workflows.text_to_sql.agents.workflow import WorkflowConfig, solve
from agentspec.workflows.text_to_sql.sql.schema import Schema
from agentspec.workflows.text_to_sql.sql.sources import Description, Source, open_source

TABLES, COLUMNS, BUDGET = 40, 40, 1_500
SUBJECTS = ("invoice", "vessel", "patient", "tenant", "bridge", "orchard", "parcel", "employee", "lawsuit", "sensor")
ASPECTS = ("weight", "colour", "origin", "status", "owner", "rating", "height", "budget", "region", "model")
STATES = ("archive", "draft", "current", "planned")
KINDS = ("gross", "net", "early", "late", "daily", "yearly", "local", "foreign", "primary", "spare")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """A chain of tables, each of which refers to the one before. Column names share their words with many others."""
    path = tmp_path_factory.mktemp("wide") / "wide.sqlite"
    statements = []
    for number in range(TABLES):
        columns = ["id INTEGER PRIMARY KEY"]
        columns += [f"before_id INTEGER REFERENCES {table_name(number - 1)}(id)"] if number else []
        columns += [f"{column_name(place)} TEXT" for place in range(COLUMNS)]
        statements.append(f"CREATE TABLE {table_name(number)} ({', '.join(columns)})")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(";".join(statements))
        connection.execute(f"INSERT INTO {table_name(33)} (id, {column_name(7)}) VALUES (1, 'Qaanaaq')")
    descriptions = {(table_name(21), column_name(5)): Description("tonnage", "the tonnage that was declared")}
    return open_source("wide", path, (), descriptions)


def table_name(number: int) -> str:
    return f"{SUBJECTS[number % 10]}_{STATES[number // 10]}"


def column_name(place: int) -> str:
    return f"{KINDS[(place * 7 + place // 10) % 10]}_{ASPECTS[place % 10]}"


def has(schema: Schema, table: str, *columns: str) -> bool:
    found = next((t for t in schema.tables if t.name == table), None)
    return found is not None and set(columns) <= {column.name for column in found.columns}


def test_the_whole_schema_stays_where_it_fits(wide: Source) -> None:
    tokens = estimated_tokens(wide.schema.text())
    assert tokens > 5 * BUDGET
    assert relevant_schema(wide, "anything", None) is wide.schema
    assert relevant_schema(wide, "anything", tokens) is wide.schema
    assert relevant_schema(wide, "anything", tokens - 1) is not wide.schema
    assert focused_schema(wide, "anything", (), (), tokens) is wide.schema


@pytest.mark.parametrize("budget", [300, BUDGET, 6_000])
def test_what_a_question_names_survives_with_its_joins(wide: Source, budget: int) -> None:
    rng = random.Random(3)
    for _ in range(12):
        number = rng.randrange(TABLES - 1)
        first, second = (column_name(place) for place in rng.sample(range(COLUMNS), 2))
        one, two = table_name(number), table_name(number + 1)
        question = f"What is the {first.replace('_', ' ')} of each {one.replace('_', ' ')}, and the "
        question += f"{second.replace('_', ' ')} of its {two.replace('_', ' ')}?"
        shown = relevant_schema(wide, question, budget)
        assert estimated_tokens(shown.text()) <= budget
        assert has(shown, one, first, "id") and has(shown, two, second, "id", "before_id"), question
        assert shown == relevant_schema(wide, question, budget)


def test_values_and_descriptions_lead_to_their_columns(wide: Source) -> None:
    assert has(relevant_schema(wide, "How many are in Qaanaaq?", 300), table_name(33), column_name(7))
    shown = relevant_schema(wide, "Which tonnage is the largest?", 300)
    assert has(shown, table_name(21), column_name(5)) and "/* tonnage */" in shown.text()


def test_a_question_in_other_words_is_shown_as_much_as_fits(wide: Source) -> None:
    shown = relevant_schema(wide, "Xyzzy?", BUDGET)
    assert 0.9 * BUDGET < estimated_tokens(shown.text()) <= BUDGET


def test_tables_that_are_named_come_with_those_between_them(wide: Source) -> None:
    first, last = table_name(11), table_name(14)
    columns = (f"{first}.{column_name(3)}", f"{last}.{column_name(4)}")
    shown = focused_schema(wide, "Xyzzy?", (first, last), columns, 300)
    assert has(shown, first, column_name(3)) and has(shown, last, column_name(4))
    assert has(shown, table_name(12), "id", "before_id") and has(shown, table_name(13), "id", "before_id")
    assert {table.name for table in shown.tables} == {table_name(number) for number in range(11, 15)}
    assert estimated_tokens(shown.text()) <= 300
    # Tables too far apart are not joined at any price.
    far = focused_schema(wide, "Xyzzy?", (table_name(1), table_name(39)), (), 300)
    assert {table.name for table in far.tables} == {table_name(1), table_name(39)}


def test_a_table_wider_than_the_budget_shows_its_named_columns(wide: Source) -> None:
    named = [f"{table_name(2)}.{column_name(place)}" for place in (39, 20, 3)]
    shown = focused_schema(wide, "Xyzzy?", (table_name(2),), named, 150)
    assert (
        has(shown, table_name(2), *(name.partition(".")[2] for name in named))
        and len(shown.tables[0].columns) < COLUMNS
    )


@pytest.mark.parametrize("columns", ["a, b", '"a.b", "c d"'])
def test_references_of_every_form_join(tmp_path: Path, columns: str) -> None:
    first, second = columns.split(", ")
    many = ", ".join(f"filler_{number} TEXT" for number in range(60))
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as connection, connection:
        connection.executescript(
            f'CREATE TABLE "Some.Thing" ({first} INTEGER PRIMARY KEY, {many});'
            f'CREATE TABLE near ({second} INTEGER REFERENCES "some.thing", {many});'
            f'CREATE TABLE exact ({second} INTEGER REFERENCES "Some.Thing"({first}), {many});'
        )
    source = open_source("x", tmp_path / "x.sqlite")
    shown = relevant_schema(source, "filler 59 of near, exact and thing", 150)
    key, other = first.strip('"'), second.strip('"')
    assert has(shown, "Some.Thing", key) and has(shown, "near", other) and has(shown, "exact", other)


@pytest.mark.parametrize("extract", ['{"tables": ["parcel_current"], "columns": ["net_owner"]}', "no JSON"])
def test_prompts_of_all_stages_stay_below_the_budget(wide: Source, extract: str) -> None:
    said = {**ANSWERS, "extract": extract, **dict.fromkeys(("draft", "combine", "repair"), "SELECT 1")}
    model = Scripted(lambda stage, messages, earlier: said[stage])
    config = WorkflowConfig(context_tokens=300)
    question = "Who is the net owner of a current parcel?"
    asyncio.run(solve(model, question, wide, config, Transcript(), evidence="net owner refers to net_owner"))
    prompts = [(stage, messages[0]["content"]) for stage, messages, _ in model.calls]
    assert {stage for stage, _ in prompts} >= {"classify", "extract", "enrich", "draft", "check"}
    for stage, system in prompts:
        assert system.startswith(RULES)
        assert estimated_tokens(system.removeprefix(RULES + "\n")) <= 300, stage
        assert "parcel_current(" in system and "net_owner" in system
    # One prefix before extract has answered, and one after it.
    before = {system for stage, system in prompts if stage in ("classify", "extract")}
    after = {system for stage, system in prompts if stage not in ("classify", "extract")}
    assert len(before) == len(after) == 1


def test_a_budget_too_small_for_a_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="context_tokens must be at least 100"):
        WorkflowConfig(context_tokens=99)
