from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer
from chat_server import chat_server
from staged_answers import ANSWERS, QUESTION, RIGHT

from agentspec.ab.workload import read_results
from agentspec.analysis.logs.formats import calls_of
from agentspec.analysis.replay import read_trace
from agentspec.workflows.text_to_sql import Database
from agentspec.workflows.text_to_sql.agents.stages import INSTRUCTIONS, STAGES
from agentspec.workflows.text_to_sql.command import main
from agentspec.workflows.text_to_sql.generated.domains import SHOP

SERVER = ["--base-url", "http://x", "--model", "m"]
REFERENCE = ["--reference", "--generated", "6", "--seed", "2"]


def said(request: dict[str, Any]) -> str:
    user = request["messages"][1]["content"]
    return ANSWERS[next(stage for stage in STAGES if user.startswith(INSTRUCTIONS[stage]))]


def test_questions_of_a_file_over_a_server(
    databases: dict[Database, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions, out, figures = tmp_path / "asked.jsonl.xz", tmp_path / "out.jsonl", tmp_path / "figures.json"
    lines = [
        {"id": "right", "question": QUESTION, "sql": RIGHT},
        {"id": "wrong", "question": "Who?", "sql": "SELECT name FROM customers"},
        {"id": "ungraded", "question": "Which?"},
        {"id": "lost", "question": "Where?", "database": "nowhere", "sql": "SELECT 1"},
    ]
    questions.write_bytes(lzma.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    files = ["--databases", str(databases[SHOP]), "--questions", str(questions), "--out", str(out)]
    with chat_server(said) as url:
        words = [*files, "--base-url", url, "--model", "m", "--json", str(figures), "--extra-body", '{"top_k": 1}']
        assert main(words) == 1
        # The second run keeps three answers and asks only the question that failed.
        assert main(words) == 1
    captured = capsys.readouterr()
    assert "execution accuracy 33.3%" in captured.out and "no database 'nowhere'; there is shop" in captured.out
    assert "3 of 4 questions were answered before" in captured.err
    report = json.loads(figures.read_text())
    assert report["outcomes"] == {"correct": 1, "wrong": 1, "truncated": 0, "error": 1, "ungraded": 1}
    assert report["config"]["drafts"] == 3 and report["versions"]["sqlglot"]
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert {record["session"]: len(record["calls"]) for record in records} == {
        "right": 7, "wrong": 7, "ungraded": 7, "lost": 0,
    }  # fmt: skip


def test_recorded_calls_are_read_by_replays_and_reports(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert main([*REFERENCE, "--out", str(out), "--concurrency", "2"]) == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    number = sum(len(record["calls"]) for record in records)
    trace = read_trace(str(out), byte_tokenizer())
    assert (len(trace.calls), trace.num_sessions, trace.bad_lines) == (number, 6, [])
    assert all(len(call.prompt) > 100 for call in trace.calls)
    name, calls = calls_of(records[0], "")
    assert name == "staged" and {call.labels.role for call in calls} == {call["stage"] for call in records[0]["calls"]}
    assert all(call.has_prompt for call in calls)


@pytest.mark.parametrize("field", ["question", "gold"])
def test_records_of_other_questions_are_not_taken_for_these(
    field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    assert main([*REFERENCE, "--generated", "2", "--out", str(out)]) == 0
    out.write_text(out.read_text().replace(f'"{field}": "', f'"{field}": "Not this: '))
    assert main([*REFERENCE, "--generated", "2", "--out", str(out)]) == 2
    assert "another question under the id" in capsys.readouterr().err


def test_a_run_beyond_the_last_question_leaves_a_file_without_records(tmp_path: Path) -> None:
    """`agentspec ab` asks for slices up to the number of tasks that it was told, and a set may have fewer."""
    out = tmp_path / "out.jsonl"
    assert main([*REFERENCE, "--skip", "6", "--limit", "2", "--out", str(out)]) == 0
    assert read_results(out) == []


def test_a_server_that_is_down_fails_every_question(capsys: pytest.CaptureFixture[str]) -> None:
    # Port 9 (discard) has no listener.
    words = ["--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--generated", "2", "--retries", "0"]
    assert main(words) == 1
    assert "2 error" in (text := capsys.readouterr().out) and "APIConnectionError" in text and "127.0.0.1:9" in text


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "--base-url"),
        (["--base-url", "http://x"], "--model"),
        (SERVER, "--questions"),
        (["--reference"], "--questions"),
        (["--reference", "--databases", "x", "--questions", "x"], "--generated"),
        ([*REFERENCE, "--questions", "x"], "--generated"),
        ([*REFERENCE, "--base-url", "http://x"], "--model"),
        ([*REFERENCE, "--generated", "0"], "--generated"),
        ([*REFERENCE, "--concurrency", "0"], "--concurrency"),
        ([*REFERENCE, "--drafts", "0"], "drafts"),
        ([*REFERENCE, "--timeout", "0"], "--timeout"),
        ([*REFERENCE, "--out", "missing/folder/x.jsonl"], "--out"),
        ([*SERVER, "--databases", "missing", "--questions", "missing"], "missing"),
        ([*SERVER, "--format", "bird"], "--format and --dataset need each other"),
        ([*SERVER, "--dataset", "."], "--format and --dataset need each other"),
        ([*SERVER, "--format", "bird", "--dataset", ".", "--databases", "."], "leave --databases out"),
        ([*SERVER, "--difficulty", "simple", "--databases", ".", "--questions", "x"], "--difficulty selects questions"),
        ([*SERVER, "--format", "bird", "--dataset", ".", "--generated", "3"], "it goes without --dataset"),
        ([*SERVER, "--format", "bird", "--dataset", "missing"], "which is no folder"),
        ([*SERVER, "--generated", "3", "--context-tokens", "5"], "context_tokens must be at least 100"),
    ],
)
def test_bad_arguments_end_with_one_clear_line(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert named in said and said.count("\n") == 1
