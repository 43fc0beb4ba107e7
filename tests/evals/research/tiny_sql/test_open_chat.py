"""Open requests: they depend on the seed, the splits share none, and they share little text."""

from __future__ import annotations

from itertools import islice

from agentspec.evals.research.tiny_sql.open_chat import draw_open_prompts, open_requests
from agentspec.workflows.text_to_sql.agents.prompts import SYSTEM


def texts(split: str, seed: int, number: int) -> list[str]:
    drawn = islice(draw_open_prompts(split=split, seed=seed), number)  # type: ignore[arg-type]
    return [messages[-1]["content"] for messages in drawn]


def test_requests_are_held_out_prompts_to_the_writer() -> None:
    requests = open_requests(3, seed=5)
    assert [[message["role"] for message in messages] for messages in requests] == [["system", "user"]] * 3
    assert [messages[1]["content"] for messages in requests] == texts("heldout", 5, 3)
    assert {messages[0]["content"] for messages in requests} == {SYSTEM["write"]}


def test_the_sides_share_nothing_and_seeds_differ() -> None:
    assert not set(texts("train", 0, 300)) & set(texts("heldout", 0, 300))
    assert texts("heldout", 0, 5) == texts("heldout", 0, 5) != texts("heldout", 1, 5)


def test_requests_share_little() -> None:
    def grams(text: str) -> set[tuple[str, ...]]:
        words = text.split()
        return set(zip(words, words[1:], words[2:], words[3:], words[4:], strict=False))

    drawn = [grams(text) for text in texts("heldout", 0, 100)]
    shared = sum(len(one & set().union(*drawn[:place])) for place, one in enumerate(drawn))
    assert shared < 0.1 * sum(map(len, drawn))
