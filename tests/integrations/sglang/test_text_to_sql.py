"""The staged agents with a real server. Its small model was trained on other prompts, so its answers are nonsense."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentspec.integrations.servers.server import Server
from agentspec.workflows.text_to_sql.command import main

pytestmark = [pytest.mark.sglang, pytest.mark.server]


def test_nonsense_of_a_real_model_fails_no_call(plain: Server, tmp_path: Path) -> None:
    database, questions, out = tmp_path / "pets.sqlite", tmp_path / "asked.jsonl", tmp_path / "out.jsonl"
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE pets (name TEXT)")
    questions.write_text('{"question": "How many pets are there?", "sql": "SELECT COUNT(*) FROM pets"}\n')
    words = ["--base-url", f"{plain.url}/v1", "--model", "tiny-sql", "--databases", str(database), "--out", str(out)]
    limits = ["--questions", str(questions), "--max-tokens", "8", "--drafts", "1", "--retries", "0"]
    assert main([*words, *limits]) == 0
    (record,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert record["outcome"] in ("correct", "wrong", "truncated") and not record["failures"]
    assert {call["stage"] for call in record["calls"]} >= {"classify", "extract", "enrich", "draft"}
    # The agents asked again after unusable answers, using the model's own chat template.
    assert any(len(call["messages"]) == 4 for call in record["calls"])
    for call in record["calls"]:
        assert call["prompt_tokens"] > 50 and 0 < call["completion_tokens"] <= 8 and call["seconds"] > 0
