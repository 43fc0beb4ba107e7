from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec import ConfigError
from agentspec.workflows.text_to_sql.sets.published import read_set
from agentspec.workflows.text_to_sql.sql.hardness import HARDNESS
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
