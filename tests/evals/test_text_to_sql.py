from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.evals.text_to_sql import main, summarize, table
from agentspec.workflows.text_to_sql import Answer, Call, Completion, Outcome, Question
from agentspec.workflows.text_to_sql.generated.queries import Query


def answer(database: str, outcome: Outcome, *completions: Completion) -> Answer:
    question = Question(database, "count", "How many?", Query("t", ("COUNT(*)",)))
    return Answer(question, outcome, "", tuple(Call("link", (), completion) for completion in completions))


def test_summary_counts_every_question_once() -> None:
    answers = [
        answer("shop", "correct", Completion("a", prompt_tokens=10, completion_tokens=4)),
        answer("shop", "wrong", Completion("a", prompt_tokens=20, completion_tokens=8)),
        answer("music", "truncated", Completion(error="refused")),
        answer("music", "error"),
    ]
    summary = summarize(answers)
    assert summary["accuracy"] == 0.25
    assert summary["outcomes"] == {"correct": 1, "wrong": 1, "truncated": 1, "error": 1}
    assert summary["databases"]["shop"] == {"correct": 1, "wrong": 1}
    # Failed calls have no tokens to count.
    assert summary["stages"]["link"] == {
        "calls": 2,
        "prompt_mean": 15.0,
        "prompt_max": 20,
        "completion_mean": 6.0,
        "completion_max": 8,
    }
    assert "50.0%" in table(summary)


def test_unreachable_server_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    # Port 9 (discard) has no listener.
    assert main(["--base-url", "http://127.0.0.1:9/v1", "--questions", "2", "--json", str(out)]) == 1
    report = json.loads(out.read_text())
    assert report["outcomes"]["error"] == 2 and report["seed"] == 0
    assert "APIConnectionError" in report["answers"][0]["detail"]
    assert "all" in capsys.readouterr().out
