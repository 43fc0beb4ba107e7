"""Chains are read from a server that tells them."""

from __future__ import annotations

from typing import Any

import pytest

from agentspec.errors import ConfigError
from agentspec.integrations.servers.drafted_chains import drafted_chains
from agentspec.integrations.servers.server import RunningServer


class Drafting(RunningServer):
    """Answers every prompt in some steps. The last draft of an answer has one token less."""

    def __init__(self, steps: int) -> None:
        super().__init__("http://drafting")
        self.steps = steps
        self.chains: list[tuple[list[float], int]] = []
        self.asked: list[list[list[int]]] = []

    def post(self, path: str, body: Any = None, timeout: float = 300.0) -> Any:
        if path == "/tokenize":
            return {"tokens": [[*range(len(text))] for text in body["prompt"]]}
        self.asked.append(body["input_ids"])
        for _ in body["input_ids"]:
            self.chains += [([0.9, 0.5, 0.25], number % 4) for number in range(self.steps)]
            self.chains.append(([0.9, 0.5], 1))
        return {}

    def agentspec_state(self) -> dict[str, Any] | None:
        # As many as a server remembers.
        return {"control": {"steps": [], "num_chains": len(self.chains), "chains": self.chains[-64:]}}


def test_whole_chains_are_kept() -> None:
    server = Drafting(steps=12)
    chains = drafted_chains(server, ["abcd", "ab", "abc", "abcdef", "a"], rows=2, most_tokens=3)
    assert server.asked == [[[1, 2, 3], [0, 1]], [[0, 1, 2], [3, 4, 5]], [[0], [1, 2, 3]]]
    assert chains.probabilities.shape == (6 * 12, 3) and chains.probabilities[5].tolist() == [0.9, 0.5, 0.25]
    assert chains.accepted.tolist() == [0, 1, 2, 3] * 18


def test_enough_chains_end_the_search() -> None:
    server = Drafting(steps=30)
    drafted_chains(server, ["ab"] * 500, rows=2, most_tokens=3)
    assert len(server.asked) == -(-2000 // 62)


def test_too_few_chains() -> None:
    with pytest.raises(ConfigError, match="gave 9 drafts, and 50 are needed"):
        drafted_chains(Drafting(steps=2), ["ab", "ab", "ab"], rows=1, most_tokens=3)
