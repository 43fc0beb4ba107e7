"""Whole runs of the command on BIRD and Spider, with a server whose answers are scripted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_server import chat_server
from staged_answers import ANSWERS

from agentspec.workflows.text_to_sql.agents.stages import INSTRUCTIONS, STAGES
from agentspec.workflows.text_to_sql.command import main
from agentspec.workflows.text_to_sql.generated.domains import DATABASES
from agentspec.workflows.text_to_sql.tasks import Task


class Model:
    """Knows the gold queries, and answers every tenth question with another one."""

    def __init__(self, tasks: list[Task]) -> None:
        self.statements = {
            (task.database, task.question): "SELECT 'wrong'" if number % 10 == 9 else task.sql
            for number, task in enumerate(tasks)
        }
        self.prompts: list[tuple[str, str, str]] = []

    def __call__(self, request: dict[str, Any]) -> str:
        system, user = (message["content"] for message in request["messages"][:2])
        database = field(system, "database ")
        stage = next(name for name in STAGES if user.startswith(INSTRUCTIONS[name]))
        self.prompts.append((stage, system, user))
        if stage == "extract":
            tables = next(d for d in DATABASES if d.name == database).tables
            return json.dumps({"tables": [table.name for table in tables]})
        if stage == "enrich":
            return json.dumps({"question": "again", "notes": []})
        return self.statements[database, field(user, "question: ")] if stage == "draft" else ANSWERS[stage]


def field(text: str, start: str) -> str:
    return next(line.removeprefix(start) for line in text.splitlines() if line.startswith(start))


def run(model: Model, tmp_path: Path, *words: str) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    out, figures = tmp_path / "out.jsonl", tmp_path / "figures.json"
    with chat_server(model) as url:
        status = main([*words, "--base-url", url, "--model", "m", "--out", str(out), "--json", str(figures)])
    return status, json.loads(figures.read_text()), [json.loads(line) for line in out.read_text().splitlines()]


def test_bird_from_the_folder_to_the_score(
    bird: Path, drawn: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model(drawn)
    status, report, records = run(model, tmp_path, "--format", "bird", "--dataset", str(bird), "--drafts", "1")
    assert status == 0 and report["questions"] == report["graded"] == len(drawn)
    assert report["accuracy"] == 0.9 and report["outcomes"]["wrong"] == len(drawn) // 10
    assert report["questions_file"] == "bird, dev.json" and report["config"]["scorer"] == "bird"
    # The wrong ones are spread over the three difficulties.
    by_difficulty = report["accuracy_by_difficulty"]
    assert list(by_difficulty) == ["simple", "moderate", "challenging"]
    assert (
        sum(round(part["accuracy"] * part["graded"]) for part in by_difficulty.values())
        == report["outcomes"]["correct"]
    )
    captured = capsys.readouterr()
    assert "execution accuracy 90.0% of 100" in captured.out and "  moderate " in captured.out
    assert "100 questions of " in captured.err and "5 columns described" in captured.err
    assert {record["difficulty"] for record in records} == set(by_difficulty)
    # Evidence reaches every stage of the questions that have some, right after the question.
    for number, task in enumerate(drawn):
        told = [user for _, _, user in model.prompts if f"question: {task.question}\n" in user + "\n"]
        evidence = f"question: {task.question}\nevidence: evidence {number}; it refers to {task.database}"
        assert told and all((evidence in user) == bool(number % 2) for user in told)
    assert any("/* place where the customer lives */" in system for _, system, _ in model.prompts)


def test_spider_from_the_folder_to_the_score(spider: Path, drawn: list[Task], tmp_path: Path) -> None:
    model = Model(drawn)
    status, report, records = run(model, tmp_path, "--format", "spider", "--dataset", str(spider), "--drafts", "1")
    assert status == 0 and report["accuracy"] == 0.9 and report["config"]["scorer"] == "spider"
    assert sum(part["graded"] for part in report["accuracy_by_difficulty"].values()) == report["graded"]
    assert {record["session"] for record in records} == {f"dev-{number}" for number in range(len(drawn))}
    assert not any("evidence:" in user for _, _, user in model.prompts)


def test_selection_and_another_scorer(
    bird: Path, drawn: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes.jsonl"
    notes.write_text('{"note": "Regulars order often."}\n')
    words = ["--format", "bird", "--dataset", str(bird), "--difficulty", "moderate", "--limit", "3"]
    model = Model(drawn)
    status, _, records = run(model, tmp_path, *words, "--scorer", "rows", "--notes", str(notes))
    assert status == 0 and {record["session"] for record in records} == {"dev-10", "dev-40", "dev-70"}
    # Outcomes by other rules are not mixed into one file.
    with chat_server(model) as url:
        assert main([*words, "--base-url", url, "--model", "m", "--out", str(tmp_path / "out.jsonl")]) == 2
    assert "name another file" in capsys.readouterr().err
