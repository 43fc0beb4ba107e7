"""Sets in the layout of BIRD and of Spider, made of the generated databases."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentspec.workflows.text_to_sql import Database
from agentspec.workflows.text_to_sql.tasks import Task, generated_tasks

QUESTIONS = 100
DIFFICULTIES = ("simple", "moderate", "challenging")


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    """Distinct questions on all generated databases."""
    tasks = generated_tasks(tmp_path_factory.mktemp("drawn"), 3 * QUESTIONS, seed=5).tasks
    return list({(task.database, task.question): task for task in tasks}.values())[:QUESTIONS]


@pytest.fixture
def bird(tmp_path: Path, databases: dict[Database, Path], drawn: list[Task]) -> Path:
    """The folder of an unzipped BIRD, two levels above its questions, with the files of BIRD that are not read."""
    root = tmp_path / "bird"
    home = root / "dev_20240627"
    for database, path in databases.items():
        folder = home / "dev_databases" / database.name
        (folder / "database_description").mkdir(parents=True)
        shutil.copy(path, folder / f"{database.name}.sqlite")
    shop = home / "dev_databases" / "shop" / "database_description"
    header = "original_column_name,column_name,column_description,data_format,value_description\n"
    customers = header + (
        " city ,town,place where the customer lives,text,\r\n"
        'joined,join date,"the day on which\nthe customer signed up",date,"commonsense: later than 2015, ""new"""\n'
        "name,name,name,text,\n"
        "gone,gone,a column that the table lacks,text,\n"
    )
    # The name differs in case from the table's, and Excel has put a byte order mark before the text.
    (shop / "Customers.csv").write_bytes(b"\xef\xbb\xbf" + customers.encode())
    products = header + "price,unit price,price in \u20ac \u2013 without tax,real,\n"
    (shop / "products.csv").write_bytes(products.encode("cp1252"))
    (shop / "._products.csv").write_bytes(b"\x00\x05\x16\x07")
    asked = [
        {
            "question_id": 10 * number,
            "db_id": task.database,
            "question": task.question,
            "evidence": f"evidence {number};\n it refers to {task.database}" if number % 2 else "",
            "SQL": task.sql,
            "difficulty": DIFFICULTIES[number % 3],
        }
        for number, task in enumerate(drawn)
    ]
    write_json(home / "dev.json", asked)
    write_json(home / "dev_tied_append.json", asked[:3])
    write_json(home / "dev_tables.json", [{"db_id": "shop", "column_names": []}])
    (home / "dev.sql").write_text("".join(f"{task.sql}\t{task.database}\n" for task in drawn))
    (root / "__MACOSX" / "dev_20240627").mkdir(parents=True)
    (root / "__MACOSX" / "dev_20240627" / "dev.json").write_bytes(b"\x00\x05\x16\x07")
    return root


@pytest.fixture
def spider(tmp_path: Path, databases: dict[Database, Path], drawn: list[Task]) -> Path:
    """The folder of an unzipped Spider, with two files of questions and a test set with its own databases."""
    home = tmp_path / "spider_data"
    tables = []
    for database, path in databases.items():
        for folder in ("database", "test_database"):
            (home / folder / database.name).mkdir(parents=True)
            shutil.copy(path, home / folder / database.name / f"{database.name}.sqlite")
        columns = [(number, column.name) for number, table in enumerate(database.tables) for column in table.columns]
        human = [(number, {"joined": "date of joining"}.get(name, name.replace("_", " "))) for number, name in columns]
        tables.append(
            {
                "db_id": database.name,
                "table_names_original": [table.name for table in database.tables],
                "table_names": [table.name.replace("_", " ") for table in database.tables],
                "column_names_original": [[-1, "*"], *columns],
                "column_names": [[-1, "*"], *human],
            }
        )
    write_json(home / "tables.json", tables)
    write_json(home / "test_tables.json", tables[:1])
    asked = [
        {
            "db_id": t.database,
            "query": t.sql,
            "question": t.question,
            "query_toks": t.sql.split(),
            "sql": {"select": []},
        }
        for t in drawn
    ]
    write_json(home / "dev.json", asked)
    write_json(home / "train_spider.json", asked[:7])
    write_json(home / "test.json", asked[:5])
    return home


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path
