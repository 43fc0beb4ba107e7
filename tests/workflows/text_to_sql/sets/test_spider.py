from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from needs import TRACES

from agentspec import ConfigError
from agentspec.workflows.text_to_sql.agents.pruning import estimated_tokens, focused_schema, relevant_schema
from agentspec.workflows.text_to_sql.sets.published import PublishedSet, read_set
from agentspec.workflows.text_to_sql.sql.hardness import HARDNESS
from agentspec.workflows.text_to_sql.sql.scorers import Grader
from agentspec.workflows.text_to_sql.sql.sources import open_source
from agentspec.workflows.text_to_sql.tasks import Task


def test_questions_have_ids_by_file_and_position(spider: Path, drawn: list[Task]) -> None:
    found = read_set("spider", spider)
    assert [(t.identity, t.database, t.question, t.sql) for t in found.tasks] == [
        (f"dev-{number}", t.database, t.question, t.sql) for number, t in enumerate(drawn)
    ]
    assert all(task.evidence == "" and task.difficulty in HARDNESS for task in found.tasks)
    assert [file.name for file in found.others] == ["train_spider.json", "test.json"]
    # A folder above gives the same, and so does another limit.
    assert read_set("spider", spider.parent, limit=3).tasks == found.tasks[:3]


def test_each_split_uses_its_own_databases(spider: Path) -> None:
    for file, folder in (("dev.json", "database"), ("train_spider.json", "database"), ("test.json", "test_database")):
        found = read_set("spider", spider, questions=Path(file))
        assert found.file.name == file
        assert {path.parents[1].name for path in found.databases.paths.values()} == {folder}


def test_human_names_become_notes_where_they_differ(spider: Path) -> None:
    databases = read_set("spider", spider).databases
    assert {name: list(columns) for name, columns in databases.descriptions.items() if columns} == {
        "shop": [("customers", "joined")]
    }
    source = open_source("shop", databases.paths["shop"], (), databases.descriptions["shop"])
    assert "joined INTEGER /* date of joining */" in source.schema.text()
    assert source.notes.best("joining date", 1) == ["customers.joined means date of joining"]
    # The tables of the test set come first for the test set, and the others fill in.
    assert read_set("spider", spider, questions=Path("test.json")).databases.descriptions["shop"]


def test_missing_and_damaged_files(spider: Path) -> None:
    (spider / "tables.json").write_text('[{"db_id": "shop"}]')
    with pytest.raises(ConfigError, match=r"tables\.json must be a JSON list of databases"):
        read_set("spider", spider)
    (spider / "tables.json").unlink()
    (spider / "test_tables.json").unlink()
    assert read_set("spider", spider).databases.descriptions == {}
    named = "easy, extra, hard, medium"
    with pytest.raises(
        ConfigError, match=rf"--difficulty must be one that dev\.json names, got 'simple'; it names {named}"
    ):
        read_set("spider", spider, difficulty="simple")
    (spider / "dev.json").write_text(json.dumps([{"db_id": "shop", "question": "Who?", "SQL": "SELECT 1"}]))
    with pytest.raises(ConfigError, match="use --format bird"):
        read_set("spider", spider)
    (spider / "dev.json").write_text(json.dumps([{"db_id": "zoo", "question": "Who?", "query": "SELECT 1"}]))
    with pytest.raises(ConfigError, match=r"dev\.json needs a file NAME/NAME\.sqlite, but there is none in .* for zoo"):
        read_set("spider", spider)


SESSIONS, DATABASES = TRACES / "sql_intercode_spider.jsonl.xz", TRACES / "spider_sqlite"


@pytest.fixture(scope="module")
def sessions() -> list[dict[str, Any]]:
    with lzma.open(SESSIONS, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def recorded(sessions: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> PublishedSet:
    """The sessions' questions in Spider's layout."""
    root = tmp_path_factory.mktemp("spider")
    for path in DATABASES.glob("*.sqlite"):
        folder = root / "database" / path.stem
        folder.mkdir(parents=True)
        (folder / path.name).symlink_to(path)
    asked = [
        {
            "db_id": session["db"],
            "query": session["gold"],
            "question": session["messages"][1]["content"].removeprefix("Question: "),
        }
        for session in sessions
    ]
    (root / "dev.json").write_text(json.dumps(asked))
    return read_set("spider", root)


@pytest.mark.traces
def test_gold_against_gold_is_always_right(recorded: PublishedSet) -> None:
    for name in ("spider", "bird", "rows"):
        with Grader(name, 5.0) as grader:
            graded = [grader.grade(recorded.databases.paths[t.database], t.sql, t.sql) for t in recorded.tasks]
        assert Counter(outcome for outcome, _ in graded) == {"correct": len(recorded.tasks)}, name


@pytest.mark.traces
def test_recorded_answers_are_scored_much_like_their_reward(
    recorded: PublishedSet, sessions: list[dict[str, Any]]
) -> None:
    """The sessions ran on MySQL, which compares text without regard to case and has other functions. Their reward counts
    neither a permutation of columns as right nor a missing DISTINCT. So the two agree on most answers, not on all.
    """
    agreed = 0
    with Grader("spider", 5.0) as grader:
        for task, session in zip(recorded.tasks, sessions, strict=True):
            answer = [message["content"] for message in session["messages"] if message["role"] == "assistant"][-1]
            outcome, _ = grader.grade(recorded.databases.paths[task.database], task.sql, answer)
            agreed += (outcome == "correct") == (session["reward"] == 1)
    assert agreed > 0.9 * len(sessions)


@pytest.mark.traces
def test_schemas_cut_to_half_hold_most_of_the_tables_of_the_gold(recorded: PublishedSet) -> None:
    held = total = 0
    sources = {name: open_source(name, path) for name, path in recorded.databases.paths.items()}
    for task in recorded.tasks:
        source = sources[task.database]
        budget = max(100, estimated_tokens(source.schema.text()) // 2)
        shown = {table.name.lower() for table in relevant_schema(source, task.question, budget).tables}
        needed = [table.name for table in source.schema.tables if table.name.lower() in task.sql.lower().split()]
        held += sum(name.lower() in shown for name in needed)
        total += len(needed)
        later = focused_schema(source, task.question, needed, (), budget)
        assert {table.name for table in later.tables} >= set(needed)
    assert total > 400 and held > 0.9 * total
