from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentspec import ConfigError
from agentspec.workflows.text_to_sql.sets.published import read_set
from agentspec.workflows.text_to_sql.sql.sources import open_source
from agentspec.workflows.text_to_sql.tasks import Task


def test_questions_databases_and_evidence(bird: Path, drawn: list[Task]) -> None:
    found = read_set("bird", bird)
    assert found.file == bird / "dev_20240627" / "dev.json" and found.others == []
    assert [(t.database, t.question, t.sql) for t in found.tasks] == [(t.database, t.question, t.sql) for t in drawn]
    second = found.tasks[1]
    assert second.identity == "dev-10" and second.difficulty == "moderate"
    assert second.evidence == f"evidence 1; it refers to {second.database}" and found.tasks[0].evidence == ""
    assert set(found.databases.paths) == {task.database for task in drawn} and len(found.databases.paths) > 3
    # The folder of the questions itself, or one of the levels between, gives the same.
    assert read_set("bird", bird / "dev_20240627").tasks == found.tasks
    assert read_set("bird", bird.parent).tasks == found.tasks


def test_descriptions_become_notes_and_annotate_the_schema(bird: Path) -> None:
    databases = read_set("bird", bird).databases
    source = open_source("shop", databases.paths["shop"], (), databases.descriptions["shop"])
    text = source.schema.text()
    # Byte order mark, file name in another case and stray spaces do not matter; nor does the encoding of old Excel.
    assert "city TEXT /* place where the customer lives */" in text
    assert "price REAL /* price in \u20ac \u2013 without tax */" in text
    assert "name TEXT," in text and "gone" not in text
    (note,) = source.notes.best("On which day did they sign up?", 1)
    assert note.startswith("customers.joined means join date; the day on which the customer signed up; values: ")
    assert note.endswith('later than 2015, "new"')


def test_selection_by_difficulty_and_number(bird: Path) -> None:
    every = read_set("bird", bird).tasks
    assert read_set("bird", bird, limit=4).tasks == every[:4]
    assert read_set("bird", bird, difficulty="moderate", limit=2).tasks == [every[1], every[4]]
    with pytest.raises(ConfigError, match="'easy'; it names challenging, moderate, simple"):
        read_set("bird", bird, difficulty="easy")


def test_other_files_of_questions_are_chosen_by_name(bird: Path) -> None:
    home = bird / "dev_20240627"
    mini = bird / "minidev" / "MINIDEV"
    mini.mkdir(parents=True)
    records = json.loads((home / "dev.json").read_text())
    (mini / "mini_dev_sqlite.json").write_text(json.dumps(records[:2]))
    shutil.copytree(home / "dev_databases", mini / "dev_databases")
    train = [{key: r[key] for key in ("db_id", "question", "evidence", "SQL")} for r in records[:3]]
    (home / "train.json").write_text(json.dumps(train))
    (home / "dev_databases").rename(home / "train_databases")
    chosen = read_set("bird", bird, questions=Path("mini_dev_sqlite.json"))
    assert [task.identity for task in chosen.tasks] == ["mini_dev_sqlite-0", "mini_dev_sqlite-10"]
    assert all(mini in path.parents for path in chosen.databases.paths.values())
    # The training set has neither ids nor difficulties.
    chosen = read_set("bird", bird, questions=home / "train.json")
    assert [(t.identity, t.difficulty) for t in chosen.tasks] == [(f"train-{n}", "") for n in range(3)]
    assert all("train_databases" in str(path) for path in chosen.databases.paths.values())
    assert [file.name for file in chosen.others] == ["dev.json", "mini_dev_sqlite.json"]
    with pytest.raises(ConfigError, match="--difficulty must be one that train.json names.*leave the option out"):
        read_set("bird", bird, questions=Path("train.json"), difficulty="simple")
    with pytest.raises(ConfigError, match=r"--questions must name a file in .*there is .*dev\.json"):
        read_set("bird", bird, questions=Path("other.json"))
    # Without dev.json, what comes next is the default.
    (home / "dev.json").unlink()
    assert read_set("bird", bird).file.name == "mini_dev_sqlite.json"


def test_two_files_of_one_name_are_not_guessed_between(bird: Path) -> None:
    shutil.copytree(bird / "dev_20240627", bird / "dev_2023")
    with pytest.raises(ConfigError, match=r"dev\.json several times: .*dev_2023.*choose one of them with --questions"):
        read_set("bird", bird)
    assert read_set("bird", bird, questions=bird / "dev_2023" / "dev.json").file.parent.name == "dev_2023"


def test_missing_files_are_named_with_what_to_do(bird: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--dataset must be the folder .* which is no folder"):
        read_set("bird", tmp_path / "nowhere")
    (tmp_path / "dev.zip").write_bytes(b"PK")
    with pytest.raises(ConfigError, match="an archive, which must be unzipped first"):
        read_set("bird", tmp_path / "dev.zip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"must hold dev\.json or mini_dev_sqlite\.json or train\.json"):
        read_set("bird", tmp_path / "empty")
    home = bird / "dev_20240627"
    (home / "dev_databases" / "music" / "music.sqlite").unlink()
    with pytest.raises(ConfigError, match=r"no.* for music; unzip the databases of the set beside the questions"):
        read_set("bird", bird)
    assert read_set("bird", bird, limit=1).tasks, "databases of other questions are not needed"
    shutil.rmtree(home / "dev_databases")
    (home / "dev_databases.zip").write_bytes(b"PK")
    with pytest.raises(ConfigError, match=r"where no folder is named \*database\*.*unzip .*dev_databases\.zip first"):
        read_set("bird", bird)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[", "must be a JSON file"),
        ([], "must be a JSON list of questions"),
        ({"a": 1}, "must be a JSON list of questions, got dict"),
        ([1], "at question 0: it must be a JSON object, got int"),
        ([{"db_id": "shop"}], "at question 0: the field 'question' must be a text, got nothing"),
        ([{"db_id": 3, "question": "Who?"}], "the field 'db_id' must be a text, got 3"),
        ([{"db_id": "shop", "question": "Who?", "query": "SELECT 1"}], "use --format spider"),
        ([{"db_id": "shop", "question": "Who?", "SQL": "SELECT 1", "question_id": 1}] * 2, "'dev-1' twice"),
    ],
)
def test_other_files_are_refused(bird: Path, content: Any, said: str) -> None:
    file = bird / "dev_20240627" / "dev.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ConfigError, match=said):
        read_set("bird", bird)


def test_damaged_descriptions_do_not_stop_a_run(bird: Path) -> None:
    folder = bird / "dev_20240627" / "dev_databases" / "shop" / "database_description"
    (folder / "products.csv").write_bytes(b"something,else\n1,2\n")
    # 0x81 is in neither UTF-8 nor cp1252.
    (folder / "orders.csv").write_bytes(
        b"original_column_name,column_description\n\nstatus,state \x81 of the order\ntotal\n"
    )
    described = read_set("bird", bird).databases.descriptions["shop"]
    assert ("products", "price") not in described
    assert described["orders", "status"].note == "state \x81 of the order" and not described["orders", "total"].note
