"""The search for the fastest draft lengths, against a server whose steps take known times."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.integrations.servers.fastest_lengths import fastest_lengths, recorded_prompts
from agentspec.integrations.servers.server import RunningServer

ACCEPTED = {1: 0.0, 2: 0.5, 4: 1.5, 8: 2.0}


class Sweeping(RunningServer):
    """Takes its widths in turn. A step costs 1 ms and 0.1 ms a token. Its last steps have one row less."""

    def __init__(self) -> None:
        super().__init__("http://sweeping")
        self.yields: list[tuple[int, int, float, int]] = []
        self.asked: list[list[list[int]]] = []
        self.turn = count()

    def post(self, path: str, body: Any = None, timeout: float = 300.0) -> Any:
        if path == "/tokenize":
            return {"tokens": [[*range(len(text))] for text in body["prompt"]]}
        self.asked.append(body["input_ids"])
        rows = len(body["input_ids"])
        for full in [True] * 12 + [False] * 5:
            width = list(ACCEPTED)[next(self.turn) % 4]
            there = rows if full else rows - 1
            seconds = 1e-3 + 1e-4 * there * width + (0.0 if full else 1.0)
            self.yields.append((there, width, seconds, round(there * (1 + ACCEPTED[width]))))
        return {}

    def agentspec_state(self) -> dict[str, Any] | None:
        return {"control": {"steps": [], "num_yields": len(self.yields), "yields": self.yields}}


def test_the_fastest_length_of_each_batch_size_is_found() -> None:
    server = Sweeping()
    found = fastest_lengths(server, ["ab", "abcdef", "abcd"], [2, 16], most_tokens=4)
    seconds = {
        (rows, width): (1e-3 + 1e-4 * rows * width) / (rows * (1 + ACCEPTED[width]))
        for rows in (2, 16)
        for width in ACCEPTED
    }
    best = {rows: min(ACCEPTED, key=lambda width, rows=rows: seconds[rows, width]) - 1 for rows in (2, 16)}
    assert found.lengths == ((2, best[2]), (16, best[16])) and best[2] > best[16]
    assert found.accepted == pytest.approx((0.5, 1.0, 1.5, 1.625, 1.75, 1.875, 2.0))
    # Prompts go round, cut at the left, and batch sizes take turns.
    assert server.asked[0] == [[0, 1], [2, 3, 4, 5]] and server.asked[1][0] == [0, 1, 2, 3]
    assert [len(prompts) for prompts in server.asked[:4]] == [2, 16, 2, 16]


def test_a_batch_that_is_never_full_is_left_out() -> None:
    class Small(Sweeping):
        def post(self, path: str, body: Any = None, timeout: float = 300.0) -> Any:
            answer = super().post(path, body, timeout)
            self.yields = [one for one in self.yields if one[0] != 16]
            return answer

    assert fastest_lengths(Small(), ["ab"], [2, 16], most_tokens=4).lengths[0][0] == 2
    with pytest.raises(ConfigError, match="no batch size had enough full batches"):
        fastest_lengths(Small(), ["ab"], [16], most_tokens=4)


def test_prompts_come_from_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"messages": [{"role": "user", "content": "one"}], "output": "two"}) + "\n")
    assert "one" in recorded_prompts(log)[0] and "two" not in recorded_prompts(log)[0]
    log.write_text(json.dumps({"output": "two"}) + "\n")
    with pytest.raises(ConfigError, match="must be a log that has prompts"):
        recorded_prompts(log)
