"""Random databases, and the calls that are learnt on them."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("sqlglot", reason="the agents parse SQL; `make setup` installs sqlglot")

from agentspec.evals.research.tiny_sql_staged.corpus import draw_lessons
from agentspec.evals.research.tiny_sql_staged.domains import draw_databases
from agentspec.evals.research.tiny_sql_staged.questions import held_out_questions
from agentspec.workflows.text_to_sql.generated.databases import Database


def _words(database: Database) -> set[str]:
    texts = [database.name]
    for table in database.tables:
        texts += [table.singular, *(column.name for column in table.columns)]
        texts += [value for column in table.columns for value in column.values]
    return {word.lower() for text in texts for word in re.split(r"[\W_\d]+", text) if word}


def test_databases_are_random_small_and_repeatable() -> None:
    drawn = list(islice(draw_databases(seed="a", unseen_words=False), 60))
    assert drawn == list(islice(draw_databases(seed="a", unseen_words=False), 60))
    assert len({database.schema_text() for database in drawn}) == 60
    for database in drawn:
        assert 2 <= len(database.tables) <= 4 and database.references()
        assert all(2 <= len(table.columns) <= 6 for table in database.tables)


def test_words_of_unseen_databases_are_not_in_the_others() -> None:
    seen, unseen = (
        set[str]().union(*(_words(database) for database in islice(draw_databases(seed="a", unseen_words=side), 40)))
        for side in (False, True)
    )
    assert seen & unseen <= {"id", "name", "title", "code", "date", "on", "year", "list"}
    assert len(unseen) > 100


def test_lessons_hold_right_answers_to_calls_with_mistakes(tmp_path: Path) -> None:
    lessons = list(islice(draw_lessons(tmp_path, seed="a"), 12))
    calls = [call for lesson in lessons for call in lesson.calls]
    assert {"classify", "extract", "enrich", "draft", "check"} <= {call.stage for call in calls}
    for lesson in lessons:
        assert len({call.messages[0]["content"] for call in lesson.calls}) == 1
    verdicts = {json.loads(call.answer)["verdict"] for call in calls if call.stage == "check"}
    assert verdicts == {"ok", "repair"}


@pytest.mark.parametrize("kind", ["new", "unseen", "shipped"])
def test_held_out_questions_have_their_databases(kind: str, tmp_path: Path) -> None:
    tasks, databases = held_out_questions(kind, 12, tmp_path)
    assert len({task.identity for task in tasks}) == 12
    assert {task.database for task in tasks} <= set(databases.paths)
    with pytest.raises(ValueError, match="kind must be one of"):
        held_out_questions("other", 1, tmp_path)
