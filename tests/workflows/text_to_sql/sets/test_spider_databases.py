"""Spider's own databases, with recorded sessions of an agent on them. Neither is part of the project."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from typing import Any

import pytest
from needs import TRACES

from agentspec.workflows.text_to_sql.agents.pruning import estimated_tokens, focused_schema, relevant_schema
from agentspec.workflows.text_to_sql.sets.published import PublishedSet, read_set
from agentspec.workflows.text_to_sql.sql.scorers import Grader
from agentspec.workflows.text_to_sql.sql.sources import open_source

SESSIONS, DATABASES = TRACES / "sql_intercode_spider.jsonl.xz", TRACES / "spider_sqlite"

pytestmark = pytest.mark.traces


@pytest.fixture(scope="module")
def sessions() -> list[dict[str, Any]]:
    with lzma.open(SESSIONS, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def spider(sessions: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> PublishedSet:
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


def test_gold_against_gold_is_always_right(spider: PublishedSet) -> None:
    for name in ("spider", "bird", "rows"):
        with Grader(name, 5.0) as grader:
            graded = [grader.grade(spider.databases.paths[t.database], t.sql, t.sql) for t in spider.tasks]
        assert Counter(outcome for outcome, _ in graded) == {"correct": len(spider.tasks)}, name


def test_recorded_answers_are_scored_much_like_their_reward(
    spider: PublishedSet, sessions: list[dict[str, Any]]
) -> None:
    """The sessions ran on MySQL, which compares text without regard to case and has other functions. Their reward counts
    neither a permutation of columns as right nor a missing DISTINCT. So the two agree on most answers, not on all.
    """
    agreed = 0
    with Grader("spider", 5.0) as grader:
        for task, session in zip(spider.tasks, sessions, strict=True):
            answer = [message["content"] for message in session["messages"] if message["role"] == "assistant"][-1]
            outcome, _ = grader.grade(spider.databases.paths[task.database], task.sql, answer)
            agreed += (outcome == "correct") == (session["reward"] == 1)
    assert agreed > 0.9 * len(sessions)


def test_schemas_cut_to_half_hold_most_of_the_tables_of_the_gold(spider: PublishedSet) -> None:
    held = total = 0
    sources = {name: open_source(name, path) for name, path in spider.databases.paths.items()}
    for task in spider.tasks:
        source = sources[task.database]
        budget = max(100, estimated_tokens(source.schema.text()) // 2)
        shown = {table.name.lower() for table in relevant_schema(source, task.question, budget).tables}
        needed = [table.name for table in source.schema.tables if table.name.lower() in task.sql.lower().split()]
        held += sum(name.lower() in shown for name in needed)
        total += len(needed)
        later = focused_schema(source, task.question, needed, (), budget)
        assert {table.name for table in later.tables} >= set(needed)
    assert total > 400 and held > 0.9 * total
