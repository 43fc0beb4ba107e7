"""The bench of the report, on small made-up sets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from byte_tokenizer import write_byte_tokenizer
from logs import noise_text, sql_sessions, write_lines

from agentspec.cli import main
from agentspec.evals.report.ranking import ranking

pytest.importorskip("tiktoken", reason="`make setup` installs tiktoken")


@pytest.fixture
def traces(tmp_path: Path) -> list[str]:
    rng = np.random.default_rng(0)
    chats = [
        {
            "session": f"c{i}",
            "messages": [
                {"role": "user", "content": noise_text(rng, 20)},
                {"role": "assistant", "content": noise_text(rng, 60)},
            ],
        }
        for i in range(110)
    ]
    agents = write_lines(tmp_path / "agents.jsonl", sql_sessions(110, seed=0))
    return [str(agents), str(write_lines(tmp_path / "chat.jsonl", chats))]


def test_agents_rank_above_noise(traces: list[str], tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    words = ["--case", "ranking", "--json", str(out)]
    assert main(["bench", "report", *traces, "--tokenizer", str(write_byte_tokenizer(tmp_path)), *words]) == 0
    content = json.loads(out.read_text())
    rows = {row["set"]: row for row in content["ranking"]["rows"]}
    assert set(rows) == {"agents", "agents, link", "agents, write", "chat"}
    assert rows["agents, write"]["entropy"] < rows["chat"]["entropy"]
    assert rows["agents, write"]["cold"] > rows["chat"]["cold"]
    assert content["ranking"]["sets_by_cold"][0] == "chat"


def test_halves_of_a_set_predict_each_other(
    traces: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    words = ["--case", "halves", "--draws", "2", "--halves-outputs", "30", "--json", str(out)]
    assert main(["bench", "report", traces[0], "--tokenizer", str(write_byte_tokenizer(tmp_path)), *words]) == 0
    (row,) = json.loads(out.read_text())["halves"]["rows"]
    assert (row["draws"], row["outputs"], row["replayed_outputs"]) == (2, 30, 110)
    assert all(0.0 <= row[state]["held"] <= 1.0 and len(row[state]["draws"]) == 2 for state in ("cold", "warm"))
    assert "held" in capsys.readouterr().out


def test_staged_sets_rank_by_their_stages() -> None:
    def row(name: str, kind: str, entropy: float, length: float) -> dict[str, object]:
        figures = {"entropy": entropy, "entropy_100": entropy, "cold": length, "warm": length}
        return {"set": name, "kind": kind, **figures}

    rows = [
        row("sql", "staged", 9, 9),
        row("sql, a", "stage", 1, 5),
        row("sql, b", "stage", 2, 3),
        row("chat", "set", 3, 2),
    ]
    found = ranking(rows, ("chat",))
    assert (found["ranked"], found["spearman_entropy_cold"], found["controls_lowest_cold"]) == (3, 1.0, True)
